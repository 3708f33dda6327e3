-- What the rows of penalties from before their own columns lack, one row a sandbox.
WITH boxes AS (SELECT toUUID(arrayJoin(JSONExtract({sandbox_ids:String}, 'Array(String)'))) AS sandbox_id)
SELECT r.sandbox_id AS sandbox_id, r.confinement_version AS confinement, r.failure AS failure,
       if(r.labels['group'] != '', r.labels['group'], r.labels['task']) AS group, s.watermark AS watermark,
       toJSONString(s.enforcement) AS enforcement, toJSONString(c.unwatched) AS unwatched
FROM (
    SELECT * EXCEPT (report, phases) FROM rollouts WHERE sandbox_id IN (SELECT sandbox_id FROM boxes)
    ORDER BY revision, recorded_at LIMIT 1 BY sandbox_id
) AS r
LEFT JOIN (
    SELECT sandbox_id, watermark, enforcement FROM sandboxes WHERE sandbox_id IN (SELECT sandbox_id FROM boxes)
    ORDER BY revision, recorded_at LIMIT 1 BY sandbox_id
) AS s ON s.sandbox_id = r.sandbox_id
LEFT JOIN (
    SELECT sandbox_id, arraySort(groupUniqArray(class)) AS unwatched FROM coverage
    WHERE sandbox_id IN (SELECT sandbox_id FROM boxes) AND state = 'disabled' GROUP BY sandbox_id
) AS c ON c.sandbox_id = r.sandbox_id
