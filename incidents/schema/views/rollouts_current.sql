-- One row a rollout: its latest attempt, that attempt's latest revision.
CREATE VIEW rollouts_current AS
SELECT * FROM rollouts
ORDER BY attempt DESC, revision DESC, recorded_at DESC
LIMIT 1 BY run_id, rollout_id;
