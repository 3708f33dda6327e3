-- What the penalty of sandboxes is computed from: the incidents of a verdict's revision, without their evidence.
SELECT sandbox_id, revision, incident_id AS id, kind, channel, severity, outcome, use, intent, confidence, phase,
       step_id, toUnixTimestamp64Micro(first_at) AS first_us, summary, detector_id, detector_version, monitor_only
FROM incidents
WHERE rollout_id IN (SELECT arrayJoin(JSONExtract({rollout_ids:String}, 'Array(String)')))
  AND ({any_run:UInt8} = 1 OR run_id = {run_id:String}) AND {{arrived}}
ORDER BY recorded_at DESC, segment_id
LIMIT 1 BY sandbox_id, revision, incident_id
SETTINGS use_index_for_in_with_subqueries = 0
