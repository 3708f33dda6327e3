-- The cap of a penalty version; no row where the policy's text is not known.
SELECT JSONExtract(text, 'penalty', 'cap', 'Float64') AS cap
FROM policies WHERE penalty_version = {version:String} LIMIT 1
