-- Reports of a rollout's attempt (0: the latest), one a sandbox, its latest revision; the first to start first.
SELECT toString(sandbox_id) AS sandbox_id, run_id, attempt, report
FROM (
    SELECT * FROM rollouts
    WHERE rollout_id = {rollout_id:String} AND ({any_run:UInt8} = 1 OR run_id = {run_id:String})
      AND ({attempt:UInt32} = 0 OR attempt = {attempt:UInt32})
    ORDER BY revision DESC, recorded_at DESC
    LIMIT 1 BY run_id, attempt, sandbox_id
)
ORDER BY attempt DESC, started_at, sandbox_id
