-- What the kernel saw. The columns up to `address` are those of the event record (ebpf/events.py), checked at open.
CREATE TABLE events (
    sandbox_id UUID COMMENT 'The sandbox; (sandbox_id, seq) names an event',
    seq UInt64 COMMENT 'Number of the event in its sandbox, given by the kernel: from 1, without gaps but for losses' CODEC(Delta, ZSTD(1)),
    time_ns UInt64 COMMENT 'CLOCK_BOOTTIME in nanoseconds; wall_time is the same moment' CODEC(Delta, ZSTD(1)),
    start_ns UInt64 COMMENT 'When the process began, CLOCK_BOOTTIME; (pid, start_ns) names a process' CODEC(ZSTD(1)),
    parent_start_ns UInt64 COMMENT 'When the parent process began' CODEC(ZSTD(1)),
    result Int64 COMMENT 'Result of the system call: at least 0, or minus the errno' CODEC(ZSTD(1)),
    a0 UInt64 COMMENT 'Argument, by kind (see ebpf/src/event.h)' CODEC(ZSTD(1)),
    a1 UInt64 COMMENT 'Argument, by kind' CODEC(ZSTD(1)),
    a2 UInt64 COMMENT 'Argument, by kind' CODEC(ZSTD(1)),
    ino UInt64 COMMENT 'Object: inode number; (dev, ino, gen) names a file in its sandbox' CODEC(ZSTD(1)),
    ino2 UInt64 COMMENT 'Second object: inode number (the victim of a rename, the source of a clone)' CODEC(ZSTD(1)),
    size UInt64 COMMENT 'Object: size in bytes' CODEC(ZSTD(1)),
    dev UInt32 COMMENT 'Object: device of its superblock as the kernel names it, not as stat(2) does' CODEC(ZSTD(1)),
    gen UInt32 COMMENT 'Object: inode generation' CODEC(ZSTD(1)),
    dev2 UInt32 COMMENT 'Second object: device' CODEC(ZSTD(1)),
    gen2 UInt32 COMMENT 'Second object: inode generation' CODEC(ZSTD(1)),
    mode UInt32 COMMENT 'Object: type and permission bits (i_mode)' CODEC(ZSTD(1)),
    owner UInt32 COMMENT 'Object: owner (i_uid), in the initial user namespace' CODEC(ZSTD(1)),
    pid UInt32 COMMENT 'Process, in the initial pid namespace' CODEC(ZSTD(1)),
    tid UInt32 COMMENT 'Thread' CODEC(ZSTD(1)),
    ppid UInt32 COMMENT 'Parent process' CODEC(ZSTD(1)),
    uid UInt32 COMMENT 'Effective user, in the initial user namespace' CODEC(ZSTD(1)),
    step UInt32 COMMENT 'Ordinal of the step that the process descends from; 0: none' CODEC(ZSTD(1)),
    kind UInt16 COMMENT 'What happened, as a number; events_readable has its name' CODEC(ZSTD(1)),
    nr UInt16 COMMENT 'System call number in its own table; 65535: none' CODEC(ZSTD(1)),
    tiers UInt16 COMMENT 'What saw or enforced it, a bit set; events_readable has the names' CODEC(ZSTD(1)),
    flags UInt16 COMMENT 'Flags, a bit set; events_readable has the names' CODEC(ZSTD(1)),
    port UInt16 COMMENT 'Port, network kinds' CODEC(ZSTD(1)),
    class UInt8 COMMENT 'Class that coverage and loss are counted by, as a number' CODEC(ZSTD(1)),
    phase UInt8 COMMENT 'Phase when it happened: 1 setup, 2 agent, 3 verify, 0 unknown' CODEC(ZSTD(1)),
    origin_phase UInt8 COMMENT 'Phase in which the process, or the ancestor that it was forked from, was started' CODEC(ZSTD(1)),
    actor UInt8 COMMENT 'Whose command the process descends from: 0 agent, 1 platform' CODEC(ZSTD(1)),
    abi UInt8 COMMENT 'System call table: 0 native, 1 i386, 2 x32' CODEC(ZSTD(1)),
    family UInt8 COMMENT 'Address family, network kinds' CODEC(ZSTD(1)),
    protocol UInt8 COMMENT 'IP protocol number, network kinds' CODEC(ZSTD(1)),
    path String COMMENT 'Canonical path of the object in the sandbox; any bytes' CODEC(ZSTD(1)),
    path2 String COMMENT 'Second path, or what the process said, by kind; any bytes' CODEC(ZSTD(1)),
    text String COMMENT 'argv joined by NUL, DNS name, step id, by kind; any bytes; credentials redacted' CODEC(ZSTD(1)),
    exe LowCardinality(String) COMMENT 'Executable of the process; any bytes' CODEC(ZSTD(1)),
    address IPv6 COMMENT 'Address, network kinds; IPv4 is mapped (::ffff:a.b.c.d)' CODEC(ZSTD(1)),
    segment_id UUID COMMENT 'Segment that brought the row (table segments)' CODEC(ZSTD(1)),
    day Date COMMENT 'UTC day of spooling; the partition, and what retention counts from' CODEC(ZSTD(1)),
    node_id UUID COMMENT 'Node that the sandbox ran on' CODEC(ZSTD(1)),
    boot_id UUID COMMENT 'Boot of that node: CLOCK_BOOTTIME values compare only within one' CODEC(ZSTD(1)),
    wall_time DateTime64(9, 'UTC') COMMENT 'When it happened; fixed once, at spooling' CODEC(Delta, ZSTD(1)),
    run_id LowCardinality(String) COMMENT 'Training or evaluation job; empty: none' CODEC(ZSTD(1)),
    rollout_id String COMMENT 'Episode' CODEC(ZSTD(1)),
    attempt UInt32 COMMENT 'Attempt at the episode, from 1' CODEC(ZSTD(1)),
    INDEX kinds kind TYPE set(64) GRANULARITY 1,
    INDEX paths path TYPE bloom_filter(0.01) GRANULARITY 4
) ENGINE = MergeTree
PARTITION BY day ORDER BY (sandbox_id, seq)
TTL day + INTERVAL 30 DAY
SETTINGS non_replicated_deduplication_window = 10000, ttl_only_drop_parts = 1, fsync_after_insert = 1, fsync_part_directory = 1,
         min_bytes_for_wide_part = 200000000 -- one file to fsync a segment, not one a column
COMMENT 'Every kernel fact, one row an event. Use the view events_readable to look at them.';

-- Counts that need no scan of events. One row a segment and key, so that a segment told twice changes nothing.
CREATE TABLE activity (
    sandbox_id UUID COMMENT 'The sandbox',
    kind UInt16 COMMENT 'What happened, as a number; activity_readable has its name',
    phase UInt8 COMMENT 'Phase when it happened, as a number',
    actor UInt8 COMMENT 'Whose command: 0 agent, 1 platform',
    segment_id UUID COMMENT 'Segment that brought the events',
    day Date COMMENT 'UTC day of spooling',
    events UInt64 COMMENT 'Number of events',
    refused UInt64 COMMENT 'Of these, with a negative result',
    first_at DateTime64(9, 'UTC') COMMENT 'First of them',
    last_at DateTime64(9, 'UTC') COMMENT 'Last of them'
) ENGINE = ReplacingMergeTree
PARTITION BY day ORDER BY (sandbox_id, kind, phase, actor, segment_id)
TTL day + INTERVAL 400 DAY
SETTINGS non_replicated_deduplication_window = 10000, ttl_only_drop_parts = 1, fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'Events counted by sandbox, kind, phase and actor; outlives the events.';

CREATE MATERIALIZED VIEW activity_feed TO activity AS
SELECT sandbox_id, kind, phase, actor, segment_id, day, count() AS events, countIf(result < 0) AS refused,
       min(wall_time) AS first_at, max(wall_time) AS last_at
FROM events GROUP BY sandbox_id, kind, phase, actor, segment_id, day;
