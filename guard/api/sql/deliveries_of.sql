-- Which penalties of rollouts were handed out, to whom and how often.
SELECT d.run_id AS run_id, d.rollout_id AS rollout_id, d.value AS value, d.drop AS drop, d.revision AS revision,
       d.pinned_version AS pinned_version, d.caller AS caller, d.answers AS answers, d.first_at AS first_at,
       d.last_at AS last_at, r.train_step AS train_step, r.checkpoint AS checkpoint
FROM (
    SELECT run_id, rollout_id, value, drop, revision, pinned_version, caller, count() AS answers,
           min(answered_at) AS first_at, max(answered_at) AS last_at
    FROM deliveries
    WHERE rollout_id IN (SELECT arrayJoin(JSONExtract({rollout_ids:String}, 'Array(String)')))
    GROUP BY run_id, rollout_id, value, drop, revision, pinned_version, caller
) AS d
LEFT JOIN (
    SELECT run_id, rollout_id, labels['train_step'] AS train_step, labels['checkpoint'] AS checkpoint FROM rollouts
    WHERE rollout_id IN (SELECT arrayJoin(JSONExtract({rollout_ids:String}, 'Array(String)')))
    ORDER BY attempt DESC LIMIT 1 BY run_id, rollout_id
) AS r ON r.run_id = d.run_id AND r.rollout_id = d.rollout_id
ORDER BY run_id, train_step, rollout_id, first_at
