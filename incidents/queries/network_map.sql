-- Where a sandbox spoke or tried to: one row an address, port, protocol and kind.
-- sandbox_id UUID : the sandbox
SELECT address, port, protocol, kind, count() AS times, countIf(refused) AS refused,
       min(wall_time) AS first_at, max(wall_time) AS last_at,
       groupUniqArray(5)(exe) AS executables, groupUniqArray(5)(if(kind = 'dns', text, path)) AS names
FROM events_readable
WHERE sandbox_id = {sandbox_id:UUID} AND class = 'network'
GROUP BY address, port, protocol, kind ORDER BY times DESC, address, port
