-- A piece of a sandbox's events in order, as the sensor recorded them.
SELECT * FROM events WHERE sandbox_id = {sandbox_id:UUID} AND seq > {after:UInt64} ORDER BY seq LIMIT {limit:UInt32}
