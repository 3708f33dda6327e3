-- What people said of an incident, the latest first.
SELECT decision, reviewer, comment, reviewed_at FROM reviews
WHERE incident_id = {incident_id:String} ORDER BY reviewed_at DESC LIMIT 1000
