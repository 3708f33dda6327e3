-- Of sandboxes, the classes that were not whole.
SELECT sandbox_id, class, argMax(state, (revision, recorded_at)) AS last
FROM coverage
WHERE rollout_id IN (SELECT arrayJoin(JSONExtract({rollout_ids:String}, 'Array(String)')))
  AND ({any_run:UInt8} = 1 OR run_id = {run_id:String}) AND {{arrived}}
GROUP BY sandbox_id, class
HAVING last != 'ok'
SETTINGS use_index_for_in_with_subqueries = 0
