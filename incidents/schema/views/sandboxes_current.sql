-- One row a sandbox: its latest revision.
CREATE VIEW sandboxes_current AS
SELECT * FROM sandboxes
ORDER BY revision DESC, recorded_at DESC
LIMIT 1 BY sandbox_id;
