-- One row a rollout, over all sandboxes of its latest attempt: what is incomplete in one is incomplete in the rollout.
CREATE VIEW rollouts_judged AS
SELECT run_id, rollout_id, max(attempt) AS latest_attempt, argMax(boxes, attempt) AS sandboxes,
       argMax(state, attempt) AS status, argMax(marks, attempt) AS labels, argMax(ended, attempt) AS ended_at
FROM (
    SELECT run_id, rollout_id, attempt, count() AS boxes,
           multiIf(countIf(status = 'failed') > 0, 'failed', countIf(status != 'final') > 0, 'partial', 'final') AS state,
           argMin(labels, sandbox_id) AS marks, max(ended_at) AS ended
    FROM (
        SELECT * FROM rollouts ORDER BY revision DESC, recorded_at DESC LIMIT 1 BY run_id, rollout_id, attempt, sandbox_id
    )
    GROUP BY run_id, rollout_id, attempt
)
GROUP BY run_id, rollout_id;
