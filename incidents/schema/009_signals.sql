-- What other sensors said.
CREATE TABLE falco_alerts (
    at DateTime64(9, 'UTC') COMMENT 'When Falco saw it',
    alert_id String COMMENT 'Falco''s uuid, or a hash of the alert: an alert sent twice has one',
    rule LowCardinality(String) COMMENT 'Rule of Falco''s',
    priority LowCardinality(String) COMMENT 'Falco''s: emergency, alert, critical, error, warning, notice, informational or debug',
    output String COMMENT 'What Falco says; holds text of the agent''s',
    fields String COMMENT 'Its output_fields, JSON; holds text of the agent''s',
    container_id String COMMENT 'Container, as Falco shortens its id; host or empty: none',
    container_name String COMMENT 'Name of the container; empty: Falco did not know it',
    hostname String COMMENT 'Machine that Falco ran on',
    source LowCardinality(String) COMMENT 'Source of Falco''s event, such as syscall',
    tags Array(String) COMMENT 'The rule''s tags',
    segment_id UUID COMMENT 'Segment that brought the row (table segments)',
    day Date COMMENT 'UTC day of spooling; the partition, and what retention counts from',
    node_id UUID COMMENT 'Node that sent it',
    INDEX segments segment_id TYPE bloom_filter(0.001) GRANULARITY 1
) ENGINE = MergeTree
PARTITION BY day ORDER BY (at, alert_id)
TTL day + INTERVAL 30 DAY
SETTINGS non_replicated_deduplication_window = 10000, ttl_only_drop_parts = 1, fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'Falco''s alerts, matched to a sandbox or not. Those that are become incidents falco.*.';
