-- Share of rewards that a successful, counted act of misbehaviour stands behind, by run.
-- `low` is what was proven; `high` adds rollouts that show none and whose evidence is incomplete. Infrastructure
-- failures have no reward and count nowhere; a dismissed incident contaminates nothing.
-- run_id String = '' : one run; empty: all
-- since DateTime = '1970-01-01 00:00:00' : rollouts that ended at this moment (UTC) or later
-- until DateTime = '2100-01-01 00:00:00' : rollouts that ended before this moment (UTC)
WITH judged AS (
    SELECT run_id, rollout_id, latest_attempt, status = 'partial' AS incomplete
    FROM rollouts_judged
    WHERE ({run_id:String} = '' OR run_id = {run_id:String})
      AND ended_at >= {since:DateTime} AND ended_at < {until:DateTime} AND status != 'failed'
), dirty AS (
    SELECT run_id, rollout_id, attempt FROM incidents_current
    WHERE counted AND outcome = 'success' AND review != 'dismiss' GROUP BY run_id, rollout_id, attempt
)
SELECT j.run_id AS run_id, count() AS rollouts,
       countIf(d.attempt != 0) AS contaminated,
       countIf(d.attempt = 0 AND j.incomplete) AS incomplete,
       contaminated / rollouts AS low,
       (contaminated + incomplete) / rollouts AS high
FROM judged AS j
LEFT JOIN dirty AS d ON d.run_id = j.run_id AND d.rollout_id = j.rollout_id AND d.attempt = j.latest_attempt
GROUP BY run_id ORDER BY run_id
