-- Penalties of many rollouts: every attempt, one row a sandbox, its latest revision.
-- The ids come as one JSON text: an array as a parameter is parsed in quadratic time.
WITH wanted AS (SELECT arrayJoin(JSONExtract({rollout_ids:String}, 'Array(String)')) AS rollout_id)
SELECT p.run_id AS run_id, p.rollout_id AS rollout_id, p.attempt AS attempt, toString(p.sandbox_id) AS sandbox_id,
       p.status AS status, p.value AS value, p.bound AS bound, p.drop AS drop, p.by_step AS by_step,
       p.reasons AS reasons, p.revision AS revision, p.detection_version AS detection,
       p.penalty_version AS penalty, r.confinement_version AS confinement, r.failure AS failure
FROM (
    SELECT * FROM penalties
    WHERE rollout_id IN (SELECT rollout_id FROM wanted) AND ({any_run:UInt8} = 1 OR run_id = {run_id:String})
    ORDER BY attempt DESC, revision DESC, recorded_at DESC
    LIMIT 1 BY run_id, rollout_id, attempt, sandbox_id
) AS p
LEFT JOIN (
    SELECT sandbox_id, confinement_version, failure FROM rollouts
    WHERE rollout_id IN (SELECT rollout_id FROM wanted) AND ({any_run:UInt8} = 1 OR run_id = {run_id:String})
    ORDER BY revision DESC, recorded_at DESC
    LIMIT 1 BY sandbox_id
) AS r ON r.sandbox_id = p.sandbox_id
ORDER BY p.rollout_id, p.attempt DESC, p.sandbox_id
