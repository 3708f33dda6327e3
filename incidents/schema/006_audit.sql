-- Who changed what. Rows are only ever added, and have no end: retention does not reach them.
CREATE TABLE audit (
    at DateTime64(6, 'UTC') COMMENT 'When',
    who String COMMENT 'Name of the token, or the user of this machine',
    token_id String COMMENT 'Id of the token; empty: a user of this machine',
    role LowCardinality(String) COMMENT 'Role in which it was done',
    project String COMMENT 'Projects of the token, a space between; empty: not bound to any',
    action LowCardinality(String) COMMENT 'What was done: review, token.create, token.revoke, token.rotate, retention, export …',
    subject String COMMENT 'To what: an incident, a token, a table …',
    before String COMMENT 'What it was (JSON); empty: nothing',
    after String COMMENT 'What it is now (JSON); empty: nothing',
    segment_id UUID COMMENT 'Segment that brought the row (table segments)',
    day Date COMMENT 'UTC day of spooling; the partition',
    node_id UUID COMMENT 'Node that sent it',
    INDEX segments segment_id TYPE bloom_filter(0.001) GRANULARITY 1
) ENGINE = MergeTree
PARTITION BY toYYYYMM(day) ORDER BY (at, action, subject)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'Changes: who, when, what it was and is.';
