-- Sandboxes with a verdict of the last three days.
SELECT toString(sandbox_id) AS sandbox_id, run_id, rollout_id, attempt,
       JSONExtractString(report, 'attached', 'cgroup') AS place, started_at, ended_at,
       detection_version, penalty_version
FROM rollouts
WHERE day >= today() - 2
  AND (toString(sandbox_id) IN (
          SELECT substring(container_name, 13) FROM falco_alerts
          WHERE day >= today() - 1 AND startsWith(container_name, 'invigilator-'))
       OR backend = 'attach')
ORDER BY revision DESC
LIMIT 1 BY sandbox_id
