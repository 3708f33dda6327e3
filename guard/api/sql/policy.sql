-- The text of a policy by the versions of its parts.
SELECT name, text FROM policies
WHERE detection_version = {detection:String} AND penalty_version = {penalty:String}
  AND ({confinement:String} = '' OR confinement_version = {confinement:String})
ORDER BY recorded_at DESC LIMIT 1
