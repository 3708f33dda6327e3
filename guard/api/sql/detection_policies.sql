-- A policy's text for each detection version.
SELECT detection_version AS detection, argMax(text, recorded_at) AS text FROM policies
WHERE detection_version IN (SELECT arrayJoin(JSONExtract({versions:String}, 'Array(String)')))
GROUP BY detection_version
