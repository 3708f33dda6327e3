-- The latest report on a rollout: the whole of it as JSON.
-- rollout_id String : the rollout
-- run_id String = '' : its run; empty: any
SELECT run_id, rollout_id, attempt, sandbox_id, status, revision, report
FROM rollouts_current
WHERE rollout_id = {rollout_id:String} AND ({run_id:String} = '' OR run_id = {run_id:String})
ORDER BY recorded_at DESC
