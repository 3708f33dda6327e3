-- What was tried and what worked, by kind: incidents by outcome, rollouts by their best outcome.
-- run_id String = '' : one run; empty: all
-- since DateTime = '1970-01-01 00:00:00' : rollouts that ended at this moment (UTC) or later
-- until DateTime = '2100-01-01 00:00:00' : rollouts that ended before this moment (UTC)
WITH judged AS (
    SELECT run_id, rollout_id, attempt, sandbox_id, status
    FROM rollouts_current
    WHERE ({run_id:String} = '' OR run_id = {run_id:String})
      AND ended_at >= {since:DateTime} AND ended_at < {until:DateTime} AND status != 'failed'
), best AS (
    SELECT i.kind AS kind, j.run_id AS run, j.rollout_id AS rollout,
           countIf(i.outcome = 'success') AS successes, countIf(i.outcome = 'denied') AS denials,
           countIf(i.outcome = 'failed') AS failures
    FROM incidents_current AS i
    INNER JOIN judged AS j ON j.run_id = i.run_id AND j.rollout_id = i.rollout_id AND j.attempt = i.attempt
    GROUP BY kind, run, rollout
)
SELECT kind, sum(successes) AS success, sum(denials) AS denied, sum(failures) AS failed,
       count() AS rollouts_tried, countIf(successes > 0) AS rollouts_succeeded,
       countIf(successes > 0) / count() AS success_ratio
FROM best GROUP BY kind ORDER BY rollouts_tried DESC, kind
