-- Rollouts, the latest first: the latest attempt of each, its first sandbox.
SELECT r.run_id AS run_id, r.rollout_id AS rollout_id, r.attempt AS attempt, toString(r.sandbox_id) AS sandbox_id,
       r.backend AS backend, r.labels AS labels, r.policy_name AS policy, r.started_at AS started_at,
       r.ended_at AS ended_at, r.status AS status, r.failure AS failure, r.exit_code AS exit_code,
       r.exit_reason AS exit_reason, r.counted_incidents AS counted_incidents, p.value AS value,
       p.bound AS bound, p.drop AS drop
FROM rollouts_current AS r
LEFT JOIN penalties_current AS p ON p.run_id = r.run_id AND p.rollout_id = r.rollout_id
WHERE ({run_id:String} = '' OR r.run_id = {run_id:String})
  AND ({rollout_id:String} = '' OR r.rollout_id = {rollout_id:String})
  AND ({status:String} = '' OR r.status = {status:String})
ORDER BY r.ended_at DESC, r.rollout_id
LIMIT {limit:UInt32} OFFSET {offset:UInt32}
