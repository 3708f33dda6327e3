-- Incidents of the latest verdict on each sandbox, with the latest review: what an older revision alone had is gone.
CREATE VIEW incidents_current AS
SELECT i.*, ifNull(r.decision, '') AS review, ifNull(r.reviewer, '') AS reviewer
FROM (
    SELECT * FROM incidents
    WHERE (sandbox_id, revision) IN (SELECT sandbox_id, max(revision) FROM sandboxes GROUP BY sandbox_id)
       OR sandbox_id NOT IN (SELECT sandbox_id FROM sandboxes)
       OR startsWith(kind, 'falco.') -- beside the verdict, whatever its revision
    ORDER BY revision DESC, recorded_at DESC
    LIMIT 1 BY incident_id
) AS i
LEFT JOIN (
    SELECT * FROM reviews WHERE decision != 'comment' ORDER BY reviewed_at DESC LIMIT 1 BY incident_id
) AS r ON r.incident_id = i.incident_id;
