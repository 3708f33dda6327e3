-- Rollouts that ended since a time, the latest first, with their labels.
SELECT run_id, rollout_id, labels FROM rollouts
WHERE ended_at >= parseDateTime64BestEffort({since:String}, 6, 'UTC') AND ({run_id:String} = '' OR run_id = {run_id:String})
ORDER BY ended_at DESC, attempt DESC, revision DESC
LIMIT 1 BY run_id, rollout_id
LIMIT {limit:UInt32}
