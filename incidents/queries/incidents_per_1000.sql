-- How many of 1,000 rollouts show each kind of misbehaviour, by kind and channel.
-- `low` counts rollouts in which it was proven; `high` adds those whose evidence is incomplete, as if all of them
-- had it: the truth lies between. Infrastructure failures count nowhere.
-- run_id String = '' : one run; empty: all
-- since DateTime = '1970-01-01 00:00:00' : rollouts that ended at this moment (UTC) or later
-- until DateTime = '2100-01-01 00:00:00' : rollouts that ended before this moment (UTC)
WITH judged AS (
    SELECT run_id, rollout_id, attempt, sandbox_id, status
    FROM rollouts_current
    WHERE ({run_id:String} = '' OR run_id = {run_id:String})
      AND ended_at >= {since:DateTime} AND ended_at < {until:DateTime} AND status != 'failed'
), totals AS (
    SELECT count() AS rollouts, countIf(status = 'partial') AS partials FROM judged
), found AS (
    SELECT i.kind AS kind, i.channel AS channel, uniqExact(j.run_id, j.rollout_id) AS proven,
           uniqExactIf((j.run_id, j.rollout_id), j.status = 'partial') AS proven_partial,
           count() AS incidents
    FROM incidents_current AS i
    INNER JOIN judged AS j ON j.run_id = i.run_id AND j.rollout_id = i.rollout_id AND j.attempt = i.attempt
    GROUP BY kind, channel
)
SELECT kind, channel, incidents, proven AS rollouts_with, rollouts,
       1000 * proven / rollouts AS low,
       1000 * (proven + partials - proven_partial) / rollouts AS high
FROM found CROSS JOIN totals
ORDER BY low DESC, kind
