-- Penalty versions that are known, the latest first.
SELECT penalty_version, argMax(name, recorded_at) AS name FROM policies
GROUP BY penalty_version ORDER BY max(recorded_at) DESC LIMIT 10
