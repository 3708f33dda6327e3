-- Incidents, the latest first, without their evidence.
SELECT incident_id AS id, kind, channel, severity, outcome, use, intent, confidence, phase, step_id, first_at,
       last_at, count, summary, detector_id, detector_version, attack, monitor_only, counted, weight,
       toString(sandbox_id) AS sandbox_id, run_id, rollout_id, attempt, review, reviewer
FROM incidents_current
WHERE ({run_id:String} = '' OR run_id = {run_id:String})
  AND ({rollout_id:String} = '' OR rollout_id = {rollout_id:String})
  AND ({kind:String} = '' OR kind = {kind:String})
  AND ({severity:String} = '' OR severity = {severity:String})
  AND ({outcome:String} = '' OR outcome = {outcome:String})
  AND ({review:String} = '' OR review = {review:String} OR ({review:String} = 'none' AND review = ''))
  AND (NOT monitor_only OR {monitor_only:UInt8} = 1)
ORDER BY last_at DESC, id
LIMIT {limit:UInt32} OFFSET {offset:UInt32}
