-- Since when each node's detectors judged in which version, by detection version; those that only watch left out.
SELECT detection_version AS detection, detector_id, detector_version, node_id,
       formatDateTime(min(recorded_at), '%Y-%m-%dT%H:%i:%S.%f+00:00') AS since
FROM detectors
WHERE detection_version IN (SELECT arrayJoin(JSONExtract({versions:String}, 'Array(String)'))) AND NOT monitor_only
  AND {{arrived}}
GROUP BY detection_version, detector_id, detector_version, node_id
ORDER BY since, detector_version
