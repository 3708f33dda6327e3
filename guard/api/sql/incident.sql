-- Incidents with their evidence whose id begins so; two at most: then it has to be said which.
SELECT incident_id AS id, kind, channel, severity, outcome, use, intent, confidence, phase, step_id, first_at,
       last_at, count, summary, evidence, detector_id, detector_version, attack, monitor_only, counted, weight,
       toString(sandbox_id) AS sandbox_id, run_id, rollout_id, attempt, revision, detection_version,
       penalty_version, review, reviewer
FROM incidents_current
WHERE startsWith(incident_id, {incident_id:String}) AND (NOT monitor_only OR {monitor_only:UInt8} = 1)
ORDER BY incident_id != {incident_id:String}, incident_id
LIMIT 2
