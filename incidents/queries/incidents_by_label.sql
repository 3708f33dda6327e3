-- Rollouts with a counted incident, by a label (checkpoint, task, group, …), with bounds as in incidents_per_1000.
-- label String : the label's key
-- run_id String = '' : one run; empty: all
WITH judged AS (
    SELECT run_id, rollout_id, attempt, status, labels[{label:String}] AS value FROM rollouts_current
    WHERE status != 'failed' AND ({run_id:String} = '' OR run_id = {run_id:String})
), dirty AS (
    SELECT run_id, rollout_id, attempt, groupUniqArray(kind) AS kinds FROM incidents_current
    WHERE counted GROUP BY run_id, rollout_id, attempt
)
SELECT j.value AS value, count() AS rollouts, countIf(d.rollout_id != '') AS with_incident,
       countIf(d.rollout_id = '' AND j.status = 'partial') AS incomplete,
       1000 * with_incident / rollouts AS low, 1000 * (with_incident + incomplete) / rollouts AS high,
       arraySort(arrayDistinct(arrayFlatten(groupArray(d.kinds)))) AS kinds
FROM judged AS j
LEFT JOIN dirty AS d ON d.run_id = j.run_id AND d.rollout_id = j.rollout_id AND d.attempt = j.attempt
GROUP BY value ORDER BY value
