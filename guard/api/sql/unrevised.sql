-- Sandboxes whose incidents were decided on after their latest penalty was made, of those once dismissed.
SELECT DISTINCT i.run_id AS run_id, i.rollout_id AS rollout_id, toString(i.sandbox_id) AS sandbox_id
FROM (
    SELECT run_id, rollout_id, sandbox_id, incident_id FROM incidents
    WHERE incident_id IN (SELECT incident_id FROM reviews WHERE decision = 'dismiss')
    LIMIT 1 BY incident_id
) AS i
INNER JOIN (
    SELECT incident_id, max(reviewed_at) AS at FROM reviews WHERE decision != 'comment' GROUP BY incident_id
) AS r ON r.incident_id = i.incident_id
LEFT JOIN (
    SELECT sandbox_id, max(recorded_at) AS made FROM penalties
    WHERE rollout_id IN (
        SELECT rollout_id FROM incidents
        WHERE incident_id IN (SELECT incident_id FROM reviews WHERE decision = 'dismiss')
    )
    GROUP BY sandbox_id
) AS p ON p.sandbox_id = i.sandbox_id
WHERE r.at >= p.made
