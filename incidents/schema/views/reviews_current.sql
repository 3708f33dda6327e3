-- One row an incident: the latest decision on it, comments aside.
CREATE VIEW reviews_current AS
SELECT * FROM reviews
WHERE decision != 'comment'
ORDER BY reviewed_at DESC
LIMIT 1 BY incident_id;
