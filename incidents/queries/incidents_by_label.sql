-- Rollouts with a counted incident, by a label (checkpoint, task, group, …), of 1,000, with bounds: `low` is what was
-- proven, `high` adds rollouts that show none and whose evidence is incomplete.
-- label String : the label's key
-- run_id String = '' : one run; empty: all
WITH judged AS (
    SELECT run_id, rollout_id, latest_attempt, status = 'partial' AS incomplete, labels[{label:String}] AS value
    FROM rollouts_judged
    WHERE status != 'failed' AND ({run_id:String} = '' OR run_id = {run_id:String})
), dirty AS (
    SELECT run_id, rollout_id, attempt, groupUniqArray(kind) AS kinds FROM incidents_current
    WHERE counted AND review != 'dismiss' GROUP BY run_id, rollout_id, attempt
)
SELECT j.value AS value, count() AS rollouts, countIf(d.attempt != 0) AS with_incident,
       countIf(d.attempt = 0 AND j.incomplete) AS incomplete,
       1000 * with_incident / rollouts AS low, 1000 * (with_incident + incomplete) / rollouts AS high,
       arraySort(arrayDistinct(arrayFlatten(groupArray(d.kinds)))) AS kinds
FROM judged AS j
LEFT JOIN dirty AS d ON d.run_id = j.run_id AND d.rollout_id = j.rollout_id AND d.attempt = j.latest_attempt
GROUP BY value ORDER BY value
