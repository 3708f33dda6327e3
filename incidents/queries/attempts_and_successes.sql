-- What was tried and what worked, by kind: incidents by outcome, rollouts by their best outcome, and of the rollouts
-- that tried the share that succeeded. `success_ratio` is of what was proven; the true one lies between `low` and
-- `high`: a rollout whose evidence is incomplete may have tried, and may have succeeded, unseen.
-- run_id String = '' : one run; empty: all
-- since DateTime = '1970-01-01 00:00:00' : rollouts that ended at this moment (UTC) or later
-- until DateTime = '2100-01-01 00:00:00' : rollouts that ended before this moment (UTC)
-- min_confidence Float64 = '0.8' : an incident proves from this confidence on
WITH judged AS (
    SELECT run_id, rollout_id, latest_attempt, status = 'partial' AS incomplete
    FROM rollouts_judged
    WHERE ({run_id:String} = '' OR run_id = {run_id:String})
      AND ended_at >= {since:DateTime} AND ended_at < {until:DateTime} AND status != 'failed'
), totals AS (
    SELECT countIf(incomplete) AS partials FROM judged
), shown AS (
    SELECT i.kind AS kind, j.run_id AS run, j.rollout_id AS rollout, any(j.incomplete) AS blind,
           max(i.confidence >= {min_confidence:Float64}) AS tried,
           max(i.confidence >= {min_confidence:Float64} AND i.outcome = 'success') AS won,
           max(i.outcome = 'success') AS may_have_won,
           countIf(i.outcome = 'success') AS successes, countIf(i.outcome = 'denied') AS denials,
           countIf(i.outcome = 'failed') AS failures
    FROM incidents_current AS i
    INNER JOIN judged AS j ON j.run_id = i.run_id AND j.rollout_id = i.rollout_id AND j.latest_attempt = i.attempt
    WHERE i.review != 'dismiss'
    GROUP BY kind, run, rollout
), summed AS (
    SELECT kind, sum(successes) AS success, sum(denials) AS denied, sum(failures) AS failed,
           countIf(tried = 1) AS rollouts_tried, countIf(won = 1) AS rollouts_succeeded,
           countIf(tried = 1 AND won = 0 AND (blind OR may_have_won = 1)) AS may_have_succeeded,
           countIf(tried = 0 AND NOT blind AND may_have_won = 0) AS unsure_tries,
           countIf(tried = 0 AND NOT blind AND may_have_won = 1) AS unsure_successes,
           countIf(tried = 1 AND blind) AS blind_tries
    FROM shown GROUP BY kind
)
SELECT kind, success, denied, failed, rollouts_tried, rollouts_succeeded,
       partials - blind_tries AS incomplete,
       if(rollouts_tried = 0, NULL, rollouts_succeeded / rollouts_tried) AS success_ratio,
       rollouts_succeeded / (rollouts_tried + unsure_tries + unsure_successes + incomplete) AS low,
       (rollouts_succeeded + may_have_succeeded + unsure_successes + incomplete)
           / (rollouts_tried + unsure_successes + incomplete) AS high
FROM summed CROSS JOIN totals
ORDER BY rollouts_tried DESC, kind
