-- The ledger that makes ingestion exactly once: a segment is here if and only if its rows are in its table.
CREATE TABLE segments (
    segment_id UUID COMMENT 'The segment',
    table_name LowCardinality(String) COMMENT 'Table that its rows went to',
    rows UInt64 COMMENT 'Number of rows',
    bytes UInt64 COMMENT 'Size of its file',
    sha256 FixedString(64) COMMENT 'SHA-256 of its file',
    schema_version UInt16 COMMENT 'Version of its columns',
    sandbox_id Nullable(UUID) COMMENT 'The sandbox; NULL: rows of several, or of none',
    first_seq UInt64 COMMENT 'First seq',
    last_seq UInt64 COMMENT 'Last seq',
    node_id UUID COMMENT 'Node that sent it',
    boot_id UUID COMMENT 'Boot of the node',
    number UInt64 COMMENT 'Number in the node''s spool',
    wall_offset_ns Int64 COMMENT 'CLOCK_REALTIME minus CLOCK_BOOTTIME at spooling',
    day Date COMMENT 'UTC day of spooling',
    ingested_at DateTime64(6, 'UTC') DEFAULT now64(6) COMMENT 'When its rows were in the store'
) ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(day) ORDER BY segment_id
TTL day + INTERVAL 800 DAY
SETTINGS ttl_only_drop_parts = 1, fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'Segments that the store has taken.';
