-- The processes of a sandbox: who started whom, what each executed last, how it ended. A parent of 0, 0 is outside.
-- sandbox_id UUID : the sandbox
SELECT pid, start_ns, argMax(parent, seq) AS parent_pid, argMax(parent_start, seq) AS parent_start_ns,
       argMaxIf(exe, seq, kind = 'exec') AS executable, argMaxIf(argv, seq, kind = 'exec') AS argv,
       argMin(first_phase, seq) AS origin_phase, argMin(owner, seq) AS actor, max(in_step) AS step,
       min(at) AS first_seen, maxIf(at, kind = 'exit') AS exited_at, countIf(kind = 'exit') > 0 AS exited,
       maxIf(code, kind = 'exit') AS exit_code, maxIf(signal, kind = 'exit') AS exit_signal,
       countIf(kind = 'exec') AS executions, count() AS events
FROM (
    SELECT pid, start_ns, ppid AS parent, parent_start_ns AS parent_start, seq, kind,
           if(kind = 'exec', path, exe) AS exe, text AS argv, origin_phase AS first_phase, actor AS owner,
           step AS in_step, wall_time AS at, result AS code, a0 AS signal
    FROM events_readable WHERE sandbox_id = {sandbox_id:UUID} AND pid != 0
)
GROUP BY pid, start_ns ORDER BY first_seen, pid
