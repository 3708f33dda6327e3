-- A penalty's row holds all that its answer says, so that a batch of answers reads one table. Rows from before,
-- and of nodes that are not upgraded yet, have no `confinement_version`: what they lack is looked up where it was.
ALTER TABLE penalties
    ADD COLUMN IF NOT EXISTS confinement_version String COMMENT 'Version of the policy''s confinement part; empty: an older row, see rollouts' AFTER reasons,
    ADD COLUMN IF NOT EXISTS failure String COMMENT 'Infrastructure failure; empty: none' AFTER status,
    ADD COLUMN IF NOT EXISTS labels Map(String, String) COMMENT 'Free labels: checkpoint, task, group, train_step, project' AFTER attempt,
    ADD COLUMN IF NOT EXISTS watermark UInt64 COMMENT 'Every event up to this seq was judged' AFTER drop,
    ADD COLUMN IF NOT EXISTS enforcement Map(String, String) COMMENT 'Tier: enforce, complain, absent, off or none, as observed' AFTER watermark,
    ADD COLUMN IF NOT EXISTS unwatched Array(String) COMMENT 'Classes of events that nobody watched (coverage disabled)' AFTER enforcement;

CREATE TABLE deliveries (
    answered_at DateTime64(6, 'UTC') COMMENT 'When, by the clock of serve',
    caller LowCardinality(String) COMMENT 'Name of the token, or the user of the Unix socket, that asked',
    run_id LowCardinality(String) COMMENT 'Training or evaluation job; empty: none',
    rollout_id String COMMENT 'Episode',
    attempt UInt32 COMMENT 'Attempt that answered',
    revision UInt32 COMMENT 'Revision that answered',
    value Nullable(Float64) COMMENT 'What was handed out; NULL: unknown',
    drop Bool COMMENT 'What was handed out',
    pinned_version String COMMENT 'Penalty version that was asked for; empty: the recorded one',
    as_of Nullable(DateTime64(6, 'UTC')) COMMENT 'Past time that was asked for; NULL: the latest',
    segment_id UUID COMMENT 'Segment that brought the row (table segments)',
    day Date COMMENT 'UTC day of spooling; the partition, and what retention counts from',
    node_id UUID COMMENT 'Node that sent it',
    INDEX segments segment_id TYPE bloom_filter(0.001) GRANULARITY 1
) ENGINE = MergeTree
PARTITION BY day ORDER BY (run_id, rollout_id, answered_at)
TTL day + INTERVAL 400 DAY
SETTINGS non_replicated_deduplication_window = 10000, ttl_only_drop_parts = 1, fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'Penalties that were handed out: to whom, when, which revision. One row a rollout and answer.';
