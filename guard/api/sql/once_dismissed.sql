-- Rollouts that have an incident which was ever dismissed.
SELECT DISTINCT run_id, rollout_id FROM incidents
WHERE incident_id IN (SELECT incident_id FROM reviews WHERE decision = 'dismiss')
  AND (NOT monitor_only OR {monitor_only:UInt8} = 1) AND ({run_id:String} = '' OR run_id = {run_id:String})
ORDER BY run_id, rollout_id LIMIT 100000
