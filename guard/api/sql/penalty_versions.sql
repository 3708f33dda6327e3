-- The policies that a penalty version is the part of; the latest first.
SELECT name, penalty_version, text FROM policies WHERE penalty_version = {version:String}
ORDER BY recorded_at DESC LIMIT 1
