-- Files that a sandbox touched, and how: one row a path and kind of access.
-- sandbox_id UUID : the sandbox
-- prefix String = '' : only paths that begin so
SELECT path, kind, count() AS times, countIf(refused) AS refused, min(wall_time) AS first_at,
       max(wall_time) AS last_at, groupUniqArray(5)(exe) AS executables, groupUniqArray(4)(phase) AS phases
FROM events_readable
WHERE sandbox_id = {sandbox_id:UUID} AND class = 'file' AND path != '' AND startsWith(path, {prefix:String})
GROUP BY path, kind ORDER BY path, kind
