-- How many alerts each incident of Falco's stands for.
SELECT incident_id AS id, max(count) AS count
FROM incidents
WHERE startsWith(kind, 'falco.') AND day >= today() - 2
GROUP BY incident_id
