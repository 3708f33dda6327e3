-- Share of rewards that a successful, counted act of misbehaviour stands behind, by run.
-- `low` is what was proven; `high` adds rollouts whose evidence is incomplete and that show nothing.
-- run_id String = '' : one run; empty: all
-- since DateTime = '1970-01-01 00:00:00' : rollouts that ended at this moment (UTC) or later
-- until DateTime = '2100-01-01 00:00:00' : rollouts that ended before this moment (UTC)
WITH judged AS (
    SELECT run_id, rollout_id, attempt, sandbox_id, status
    FROM rollouts_current
    WHERE ({run_id:String} = '' OR run_id = {run_id:String})
      AND ended_at >= {since:DateTime} AND ended_at < {until:DateTime} AND status != 'failed'
), dirty AS (
    SELECT run_id, rollout_id, attempt FROM incidents_current
    WHERE counted AND outcome = 'success' GROUP BY run_id, rollout_id, attempt
)
SELECT j.run_id AS run_id, count() AS rollouts,
       countIf(d.rollout_id != '') AS contaminated,
       countIf(d.rollout_id = '' AND j.status = 'partial') AS incomplete,
       contaminated / rollouts AS low,
       (contaminated + incomplete) / rollouts AS high
FROM judged AS j
LEFT JOIN dirty AS d ON d.run_id = j.run_id AND d.rollout_id = j.rollout_id AND d.attempt = j.attempt
GROUP BY run_id ORDER BY run_id
