-- Events as people read them: names for numbers, printable paths, wall time, the address as text.
CREATE VIEW events_readable AS
SELECT
    wall_time, sandbox_id, run_id, rollout_id, attempt, seq,
    {{kinds(kind)}} AS kind,
    {{classes(class)}} AS class,
    {{phases(phase)}} AS phase,
    {{phases(origin_phase)}} AS origin_phase,
    {{actors(actor)}} AS actor,
    step,
    result,
    if(result < 0, -result, 0) AS errno,
    result < 0 AS refused,
    {{printable(path)}} AS path,
    {{printable(path2)}} AS path2,
    {{printable(replaceAll(text, '\0', ' '))}} AS text,
    {{printable(exe)}} AS exe,
    if(family IN (2, 10), if(startsWith(IPv6NumToString(address), '::ffff:'), substring(IPv6NumToString(address), 8), IPv6NumToString(address)), '') AS address,
    port,
    transform(protocol, [1, 6, 17, 58], ['icmp', 'tcp', 'udp', 'icmpv6'], if(protocol = 0, '', toString(protocol))) AS protocol,
    {{tiers(tiers)}} AS tiers,
    {{flags(flags)}} AS flags,
    pid, tid, ppid, uid, start_ns, parent_start_ns,
    a0, a1, a2, ino, dev, gen, ino2, dev2, gen2, size, mode, owner, nr,
    {{abis(abi)}} AS abi,
    time_ns, node_id, boot_id, segment_id, day
FROM events;
