-- A piece of an export of events, in order of sandbox and number; names for numbers, paths and texts as bytes.
SELECT * REPLACE (toString(sandbox_id) AS sandbox_id, toString(node_id) AS node_id, toString(boot_id) AS boot_id,
                  toUnixTimestamp64Nano(wall_time) AS wall_time)
FROM (
    SELECT wall_time, sandbox_id, run_id, rollout_id, attempt, seq, {{kinds(kind)}} AS kind_name,
           {{classes(class)}} AS class_name, {{phases(phase)}} AS phase_name,
           {{phases(origin_phase)}} AS origin_phase_name, {{actors(actor)}} AS actor_name, step, result,
           path, path2, text, toString(exe) AS exe,
           if(family IN (2, 10), replaceRegexpOne(IPv6NumToString(address), '^::ffff:(\\d+\\.)', '\\1'), '') AS ip,
           port, family, protocol, tiers, flags, pid, tid, ppid, uid, start_ns, parent_start_ns, a0, a1, a2, ino, dev, gen,
           ino2, dev2, gen2, size, mode, owner, nr, time_ns, node_id, boot_id
    FROM events
    WHERE (sandbox_id > {box:UUID} OR (sandbox_id = {box:UUID} AND seq > {number:UInt64}))
      AND ({run_id:String} = '' OR run_id = {run_id:String})
      AND ({rollout_id:String} = '' OR rollout_id = {rollout_id:String})
      AND wall_time >= fromUnixTimestamp64Micro({since:Int64}, 'UTC')
      AND wall_time < fromUnixTimestamp64Micro({until:Int64}, 'UTC')
      AND ({kinds:String} = '[]' OR has(JSONExtract({kinds:String}, 'Array(String)'), kind_name))
      AND ({labels:String} = '{}' OR sandbox_id IN (
          SELECT sandbox_id FROM rollouts
          WHERE arrayAll(pair -> labels[pair.1] = pair.2, JSONExtractKeysAndValues({labels:String}, 'String'))))
    ORDER BY sandbox_id, seq LIMIT {rows:UInt32}
) AS piece
ORDER BY piece.sandbox_id, piece.seq
