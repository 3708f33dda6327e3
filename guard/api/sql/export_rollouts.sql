-- A piece of an export of rollouts with their penalties: the latest revision of each sandbox, in order of its id.
SELECT toString(sandbox_id) AS sandbox_id, run_id, rollout_id, attempt, backend, toJSONString(labels) AS labels, policy_name,
       confinement_version, detection_version, penalty_version, toUnixTimestamp64Micro(started_at) * 1000 AS started_at,
       toUnixTimestamp64Micro(ended_at) * 1000 AS ended_at, status, failure, exit_code, exit_reason, incidents,
       counted_incidents, value, bound, drop, revision
FROM (
    SELECT r.*, p.value AS value, p.bound AS bound, p.drop AS drop
    FROM (
        SELECT * FROM rollouts
        WHERE sandbox_id > {box:UUID}
          AND ({run_id:String} = '' OR run_id = {run_id:String})
          AND ({rollout_id:String} = '' OR rollout_id = {rollout_id:String})
          AND ended_at >= fromUnixTimestamp64Micro({since:Int64}, 'UTC')
          AND ended_at < fromUnixTimestamp64Micro({until:Int64}, 'UTC')
          AND arrayAll(pair -> labels[pair.1] = pair.2, JSONExtractKeysAndValues({labels:String}, 'String'))
        ORDER BY sandbox_id, revision DESC, recorded_at DESC
        LIMIT 1 BY sandbox_id LIMIT {rows:UInt32}
    ) AS r
    LEFT JOIN (
        SELECT sandbox_id, revision, value, bound, drop FROM penalties ORDER BY recorded_at DESC LIMIT 1 BY sandbox_id, revision
    ) AS p ON p.sandbox_id = r.sandbox_id AND p.revision = r.revision
) AS piece
ORDER BY piece.sandbox_id
