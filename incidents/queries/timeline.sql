-- What a sandbox did that is worth reading, with its incidents, in order of time.
-- sandbox_id UUID : the sandbox
SELECT at, seq, what, phase, step, detail, exe, outcome FROM (
    SELECT wall_time AS at, seq, kind AS what, phase, toString(step) AS step,
           if(address != '', concat(address, ':', toString(port)), if(text != '', text, path)) AS detail, exe,
           if(refused, concat('errno ', toString(errno)), 'ok') AS outcome
    FROM events_readable
    WHERE sandbox_id = {sandbox_id:UUID}
      AND kind NOT IN ('open', 'getdents', 'write', 'read', 'access', 'fork', 'file_bytes', 'output', 'connect_result')
    UNION ALL
    SELECT toDateTime64(first_at, 9, 'UTC') AS at, toUInt64(0) AS seq, concat('incident: ', kind) AS what, phase,
           step_id AS step, summary AS detail, '' AS exe, outcome
    FROM incidents_current WHERE sandbox_id = {sandbox_id:UUID}
)
ORDER BY at, seq
