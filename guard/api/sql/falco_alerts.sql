-- The alerts of the last two days, each once.
SELECT at, alert_id, rule, priority, output, fields, container_id, container_name, tags
FROM falco_alerts
WHERE day >= today() - 1
ORDER BY at, alert_id
LIMIT 1 BY alert_id
LIMIT 100000
