-- The latest verdict on a sandbox, and how far its penalty is.
SELECT report, revision,
       (SELECT max(revision) FROM penalties
        WHERE run_id = {run_id:String} AND rollout_id = {rollout_id:String} AND sandbox_id = {sandbox_id:UUID}) AS priced
FROM rollouts
WHERE run_id = {run_id:String} AND rollout_id = {rollout_id:String} AND sandbox_id = {sandbox_id:UUID}
ORDER BY revision DESC, recorded_at DESC LIMIT 1
