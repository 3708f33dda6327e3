-- One row a sandbox and class: the latest revision.
CREATE VIEW coverage_current AS
SELECT * FROM coverage
ORDER BY revision DESC, recorded_at DESC
LIMIT 1 BY sandbox_id, class;
