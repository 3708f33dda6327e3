-- How many of 1,000 rollouts show misbehaviour of each channel, whichever kinds; bounds as in incidents_per_1000.
-- A rollout with two kinds of one channel counts once, so this is not the sum of the kinds.
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
    SELECT count() AS rollouts, countIf(incomplete) AS partials FROM judged
), shown AS (
    SELECT i.channel AS channel, j.run_id AS run, j.rollout_id AS rollout, any(j.incomplete) AS blind,
           max(i.confidence >= {min_confidence:Float64}) AS sure, count() AS found
    FROM incidents_current AS i
    INNER JOIN judged AS j ON j.run_id = i.run_id AND j.rollout_id = i.rollout_id AND j.latest_attempt = i.attempt
    WHERE i.review != 'dismiss'
    GROUP BY channel, run, rollout
), summed AS (
    SELECT channel, sum(found) AS incidents, countIf(sure = 1) AS proven, countIf(sure = 0 AND NOT blind) AS unsure,
           countIf(sure = 1 AND blind) AS proven_partial
    FROM shown GROUP BY channel
)
SELECT channel, incidents, proven AS rollouts_with, rollouts,
       1000 * proven / rollouts AS low,
       1000 * (proven + unsure + partials - proven_partial) / rollouts AS high
FROM summed CROSS JOIN totals
ORDER BY low DESC, channel
