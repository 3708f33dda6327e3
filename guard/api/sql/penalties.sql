-- Penalties of many rollouts: every attempt, one row a sandbox, its latest revision.
-- The ids come as one JSON text: an array as a parameter is parsed in quadratic time.
SELECT run_id, rollout_id, attempt, sandbox_id, status, failure, value, bound, drop,
       if(empty(steps), '', toJSONString(steps)) AS by_step,
       if(empty(terms), '', concat('[', arrayStringConcat(terms, ','), ']')) AS reasons,
       revision, confinement_version AS confinement, detection_version AS detection, penalty_version AS penalty,
       watermark, toJSONString(tiers) AS enforcement, toJSONString(classes) AS unwatched, group, node_id,
       formatDateTime(made_at, '%Y-%m-%dT%H:%i:%S.%f+00:00') AS recorded_at
FROM (
    SELECT run_id, rollout_id, attempt, sandbox_id, status, failure, value, bound, drop, by_step AS steps,
           reasons AS terms, revision, confinement_version, detection_version, penalty_version, watermark,
           enforcement AS tiers, unwatched AS classes, if(labels['group'] != '', labels['group'], labels['task']) AS group,
           node_id, recorded_at AS made_at
    FROM penalties
    WHERE rollout_id IN (SELECT arrayJoin(JSONExtract({rollout_ids:String}, 'Array(String)')))
      AND ({any_run:UInt8} = 1 OR run_id = {run_id:String}) AND {{arrived}}
    ORDER BY attempt DESC, revision DESC, recorded_at DESC, segment_id
    LIMIT 1 BY run_id, rollout_id, attempt, sandbox_id
)
SETTINGS use_index_for_in_with_subqueries = 0
