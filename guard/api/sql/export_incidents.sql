-- A piece of an export of incidents with their evidence, in order of sandbox and id.
SELECT toString(sandbox_id) AS sandbox_id, run_id, rollout_id, attempt, incident_id, kind, channel, severity, outcome, use,
       intent, confidence, phase, step_id, toUnixTimestamp64Micro(first_at) * 1000 AS first_at,
       toUnixTimestamp64Micro(last_at) * 1000 AS last_at, count, summary, evidence, detector_id, detector_version, attack,
       monitor_only, counted, weight, detection_version, penalty_version, revision, review, reviewer
FROM (
    SELECT * FROM incidents_current
    WHERE (sandbox_id > {box:UUID} OR (sandbox_id = {box:UUID} AND incident_id > {id:String}))
      AND ({run_id:String} = '' OR run_id = {run_id:String})
      AND ({rollout_id:String} = '' OR rollout_id = {rollout_id:String})
      AND last_at >= fromUnixTimestamp64Micro({since:Int64}, 'UTC')
      AND last_at < fromUnixTimestamp64Micro({until:Int64}, 'UTC')
      AND ({kinds:String} = '[]' OR has(JSONExtract({kinds:String}, 'Array(String)'), toString(kind)))
      AND ({outcome:String} = '' OR outcome = {outcome:String})
      AND ({labels:String} = '{}' OR sandbox_id IN (
          SELECT sandbox_id FROM rollouts
          WHERE arrayAll(pair -> labels[pair.1] = pair.2, JSONExtractKeysAndValues({labels:String}, 'String'))))
    ORDER BY sandbox_id, incident_id LIMIT {rows:UInt32}
) AS piece
ORDER BY piece.sandbox_id, piece.incident_id
