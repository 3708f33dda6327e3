-- Records: what was decided, and what it rests on. Rows are only added: a change is a new revision.

CREATE TABLE incidents (
    sandbox_id UUID COMMENT 'The sandbox',
    run_id LowCardinality(String) COMMENT 'Training or evaluation job; empty: none',
    rollout_id String COMMENT 'Episode',
    attempt UInt32 COMMENT 'Attempt at the episode, from 1',
    incident_id String COMMENT 'Hash of sandbox, kind, grouping key and detector version',
    kind LowCardinality(String) COMMENT 'Kind, as in the catalogue',
    channel LowCardinality(String) COMMENT 'retrieval, tamper, network, flood, escape or sensor',
    severity LowCardinality(String) COMMENT 'info, low, medium, high or critical',
    outcome LowCardinality(String) COMMENT 'denied, failed or success',
    use LowCardinality(String) COMMENT 'none, retrieved or integrated: what became of what was taken',
    intent LowCardinality(String) COMMENT 'deliberate, accidental or unknown',
    confidence Float64 COMMENT '0 to 1',
    phase LowCardinality(String) COMMENT 'Phase in which it happened',
    step_id String COMMENT 'Step (tool call) in which it happened; empty: none',
    first_at DateTime64(6, 'UTC') COMMENT 'First event',
    last_at DateTime64(6, 'UTC') COMMENT 'Last event',
    count UInt64 COMMENT 'How many events it groups',
    summary String COMMENT 'One sentence',
    evidence Array(String) COMMENT 'Copies of the deciding events, one JSON object each; they outlive the events',
    detector_id LowCardinality(String) COMMENT 'Detector',
    detector_version UInt32 COMMENT 'Its version',
    attack Array(String) COMMENT 'MITRE ATT&CK techniques',
    monitor_only Bool COMMENT 'Shown to researchers only, never penalised',
    counted Bool COMMENT 'Counts in the penalty',
    weight Float64 COMMENT 'Weight of its kind in the penalty',
    detection_version String COMMENT 'Version of the policy''s detection part',
    penalty_version String COMMENT 'Version of the policy''s penalty part',
    revision UInt32 COMMENT 'Revision of the verdict, from 1; the highest answers',
    recorded_at DateTime64(6, 'UTC') COMMENT 'When the row was made',
    segment_id UUID COMMENT 'Segment that brought the row (table segments)',
    day Date COMMENT 'UTC day of spooling; the partition, and what retention counts from',
    node_id UUID COMMENT 'Node that sent it',
    INDEX segments segment_id TYPE bloom_filter(0.001) GRANULARITY 1
) ENGINE = MergeTree
PARTITION BY day ORDER BY (sandbox_id, incident_id, revision)
TTL day + INTERVAL 400 DAY
SETTINGS non_replicated_deduplication_window = 10000, ttl_only_drop_parts = 1, fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'A detector''s verdicts, every revision. Use the view incidents_current.';

CREATE TABLE penalties (
    sandbox_id UUID COMMENT 'The sandbox',
    run_id LowCardinality(String) COMMENT 'Training or evaluation job; empty: none',
    rollout_id String COMMENT 'Episode',
    attempt UInt32 COMMENT 'Attempt at the episode, from 1',
    status LowCardinality(String) COMMENT 'final, partial or failed',
    value Nullable(Float64) COMMENT 'At most 0; NULL: the evidence is incomplete, which is not 0',
    bound Bool COMMENT 'The value is a bound: evidence is incomplete and something was proven',
    drop Bool COMMENT 'Mask the rollout, and leave it out of group statistics',
    by_step Map(String, Float64) COMMENT 'Share of each step',
    reasons Array(String) COMMENT 'Terms of the sum, one JSON object each',
    detection_version String COMMENT 'Version of the policy''s detection part',
    penalty_version String COMMENT 'Version of the policy''s penalty part',
    revision UInt32 COMMENT 'Revision of the verdict, from 1; the highest answers',
    recorded_at DateTime64(6, 'UTC') COMMENT 'When the row was made',
    segment_id UUID COMMENT 'Segment that brought the row (table segments)',
    day Date COMMENT 'UTC day of spooling; the partition, and what retention counts from',
    node_id UUID COMMENT 'Node that sent it',
    INDEX segments segment_id TYPE bloom_filter(0.001) GRANULARITY 1
) ENGINE = MergeTree
PARTITION BY day ORDER BY (run_id, rollout_id, attempt, revision)
TTL day + INTERVAL 400 DAY
SETTINGS non_replicated_deduplication_window = 10000, ttl_only_drop_parts = 1, fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'What rollouts cost, every revision. Use the view penalties_current.';

CREATE TABLE rollouts (
    sandbox_id UUID COMMENT 'The sandbox',
    run_id LowCardinality(String) COMMENT 'Training or evaluation job; empty: none',
    rollout_id String COMMENT 'Episode',
    attempt UInt32 COMMENT 'Attempt at the episode, from 1',
    backend LowCardinality(String) COMMENT 'process, container, microvm or vm',
    labels Map(String, String) COMMENT 'Free labels: checkpoint, task, group, train_step, project',
    policy_name LowCardinality(String) COMMENT 'Policy',
    confinement_version String COMMENT 'Version of the policy''s confinement part',
    detection_version String COMMENT 'Version of the policy''s detection part',
    penalty_version String COMMENT 'Version of the policy''s penalty part',
    started_at DateTime64(6, 'UTC') COMMENT 'Start',
    ended_at DateTime64(6, 'UTC') COMMENT 'End',
    status LowCardinality(String) COMMENT 'final, partial or failed',
    failure String COMMENT 'Infrastructure failure; empty: none',
    exit_code Nullable(Int32) COMMENT 'Exit status of the command; 128 + signal',
    exit_reason LowCardinality(String) COMMENT 'exited, signalled, timeout, oom or limit',
    phases Array(String) COMMENT 'Phases, one JSON object each',
    incidents UInt32 COMMENT 'Number of incidents',
    counted_incidents UInt32 COMMENT 'Number of incidents that count in the penalty',
    report String COMMENT 'The whole report (JSON)',
    revision UInt32 COMMENT 'Revision of the verdict, from 1; the highest answers',
    recorded_at DateTime64(6, 'UTC') COMMENT 'When the row was made',
    segment_id UUID COMMENT 'Segment that brought the row (table segments)',
    day Date COMMENT 'UTC day of spooling; the partition, and what retention counts from',
    node_id UUID COMMENT 'Node that sent it',
    INDEX segments segment_id TYPE bloom_filter(0.001) GRANULARITY 1
) ENGINE = MergeTree
PARTITION BY day ORDER BY (run_id, rollout_id, attempt, revision)
TTL day + INTERVAL 400 DAY
SETTINGS non_replicated_deduplication_window = 10000, ttl_only_drop_parts = 1, fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'Verdicts on rollouts, every revision. Use the view rollouts_current.';

CREATE TABLE sandboxes (
    sandbox_id UUID COMMENT 'The sandbox',
    run_id LowCardinality(String) COMMENT 'Training or evaluation job; empty: none',
    rollout_id String COMMENT 'Episode',
    attempt UInt32 COMMENT 'Attempt at the episode, from 1',
    backend LowCardinality(String) COMMENT 'process, container, microvm or vm',
    labels Map(String, String) COMMENT 'Free labels',
    policy_name LowCardinality(String) COMMENT 'Policy',
    boot_id UUID COMMENT 'Boot of the node',
    wall_offset_ns Int64 COMMENT 'CLOCK_REALTIME minus CLOCK_BOOTTIME, fixed at its creation',
    started_at DateTime64(6, 'UTC') COMMENT 'Start',
    ended_at DateTime64(6, 'UTC') COMMENT 'End',
    status LowCardinality(String) COMMENT 'final, partial or failed',
    watermark UInt64 COMMENT 'Every event up to this seq was judged',
    enforcement Map(String, String) COMMENT 'Tier: enforce, complain, absent or off, as observed',
    produced UInt64 COMMENT 'Events that the kernel produced = stored + lost',
    stored UInt64 COMMENT 'Events on disk in the spool',
    lost UInt64 COMMENT 'Events lost',
    shipped UInt64 COMMENT 'Events that the store had acknowledged then',
    lost_by Map(String, UInt64) COMMENT 'Lost events by class/reason',
    revision UInt32 COMMENT 'Revision of the verdict, from 1; the highest answers',
    recorded_at DateTime64(6, 'UTC') COMMENT 'When the row was made',
    segment_id UUID COMMENT 'Segment that brought the row (table segments)',
    day Date COMMENT 'UTC day of spooling; the partition, and what retention counts from',
    node_id UUID COMMENT 'Node that sent it',
    INDEX segments segment_id TYPE bloom_filter(0.001) GRANULARITY 1
) ENGINE = MergeTree
PARTITION BY day ORDER BY (sandbox_id, revision)
TTL day + INTERVAL 400 DAY
SETTINGS non_replicated_deduplication_window = 10000, ttl_only_drop_parts = 1, fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'What each sandbox was and how completely it was seen. Use the view sandboxes_current.';

CREATE TABLE steps (
    sandbox_id UUID COMMENT 'The sandbox',
    run_id LowCardinality(String) COMMENT 'Training or evaluation job; empty: none',
    rollout_id String COMMENT 'Episode',
    attempt UInt32 COMMENT 'Attempt at the episode, from 1',
    step UInt32 COMMENT 'Ordinal, as in events.step',
    step_id String COMMENT 'The harness''s id of the call',
    actor LowCardinality(String) COMMENT 'agent or platform',
    phase LowCardinality(String) COMMENT 'Phase',
    command String COMMENT 'Arguments joined by spaces, credentials redacted',
    started_at DateTime64(6, 'UTC') COMMENT 'Start',
    ended_at DateTime64(6, 'UTC') COMMENT 'End',
    exit_code Nullable(Int32) COMMENT 'Exit status',
    exit_reason LowCardinality(String) COMMENT 'exited, signalled, timeout, oom or limit',
    output_bytes UInt64 COMMENT 'Bytes into the recorded streams',
    segment_id UUID COMMENT 'Segment that brought the row (table segments)',
    day Date COMMENT 'UTC day of spooling; the partition, and what retention counts from',
    node_id UUID COMMENT 'Node that sent it',
    INDEX segments segment_id TYPE bloom_filter(0.001) GRANULARITY 1
) ENGINE = MergeTree
PARTITION BY day ORDER BY (sandbox_id, step)
TTL day + INTERVAL 400 DAY
SETTINGS non_replicated_deduplication_window = 10000, ttl_only_drop_parts = 1, fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'Tool calls. One row a step.';

CREATE TABLE policies (
    name LowCardinality(String) COMMENT 'Policy',
    confinement_version String COMMENT 'SHA-256 of the confinement part',
    detection_version String COMMENT 'SHA-256 of the detection part',
    penalty_version String COMMENT 'SHA-256 of the penalty part',
    text String COMMENT 'The policy, defaults filled in, as canonical JSON',
    source String COMMENT 'The YAML that it was read from; empty: not known',
    recorded_at DateTime64(6, 'UTC') COMMENT 'When the row was made',
    segment_id UUID COMMENT 'Segment that brought the row (table segments)',
    day Date COMMENT 'UTC day of spooling; the partition, and what retention counts from',
    node_id UUID COMMENT 'Node that sent it',
    INDEX segments segment_id TYPE bloom_filter(0.001) GRANULARITY 1
) ENGINE = MergeTree
PARTITION BY day ORDER BY (name, confinement_version, detection_version, penalty_version)
TTL day + INTERVAL 400 DAY
SETTINGS non_replicated_deduplication_window = 10000, ttl_only_drop_parts = 1, fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'Policies in full, by version.';

CREATE TABLE detectors (
    detector_id LowCardinality(String) COMMENT 'Detector',
    detector_version UInt32 COMMENT 'Its version',
    kind LowCardinality(String) COMMENT 'Kind of its incidents',
    channel LowCardinality(String) COMMENT 'Channel of its incidents',
    summary String COMMENT 'What it decides by',
    thresholds String COMMENT 'Thresholds in force (JSON)',
    monitor_only Bool COMMENT 'Only watches',
    weight Float64 COMMENT 'Weight of its kind',
    detection_version String COMMENT 'Version of the policy''s detection part',
    recorded_at DateTime64(6, 'UTC') COMMENT 'When the row was made',
    segment_id UUID COMMENT 'Segment that brought the row (table segments)',
    day Date COMMENT 'UTC day of spooling; the partition, and what retention counts from',
    node_id UUID COMMENT 'Node that sent it',
    INDEX segments segment_id TYPE bloom_filter(0.001) GRANULARITY 1
) ENGINE = MergeTree
PARTITION BY day ORDER BY (detector_id, detector_version, detection_version)
TTL day + INTERVAL 400 DAY
SETTINGS non_replicated_deduplication_window = 10000, ttl_only_drop_parts = 1, fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'Detectors that judged, by version.';

CREATE TABLE reviews (
    incident_id String COMMENT 'Incident',
    decision LowCardinality(String) COMMENT 'confirm, dismiss or comment',
    reviewer String COMMENT 'Who',
    comment String COMMENT 'Why',
    reviewed_at DateTime64(6, 'UTC') COMMENT 'When',
    segment_id UUID COMMENT 'Segment that brought the row (table segments)',
    day Date COMMENT 'UTC day of spooling; the partition, and what retention counts from',
    node_id UUID COMMENT 'Node that sent it',
    INDEX segments segment_id TYPE bloom_filter(0.001) GRANULARITY 1
) ENGINE = MergeTree
PARTITION BY day ORDER BY (incident_id, reviewed_at)
TTL day + INTERVAL 400 DAY
SETTINGS non_replicated_deduplication_window = 10000, ttl_only_drop_parts = 1, fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'People''s decisions on incidents.';

CREATE TABLE coverage (
    sandbox_id UUID COMMENT 'The sandbox',
    run_id LowCardinality(String) COMMENT 'Training or evaluation job; empty: none',
    rollout_id String COMMENT 'Episode',
    attempt UInt32 COMMENT 'Attempt at the episode, from 1',
    class LowCardinality(String) COMMENT 'process, file, network, privilege, output or denial',
    state LowCardinality(String) COMMENT 'ok, degraded, failed or disabled',
    lost UInt64 COMMENT 'Events of the class that were lost',
    revision UInt32 COMMENT 'Revision of the verdict, from 1; the highest answers',
    recorded_at DateTime64(6, 'UTC') COMMENT 'When the row was made',
    segment_id UUID COMMENT 'Segment that brought the row (table segments)',
    day Date COMMENT 'UTC day of spooling; the partition, and what retention counts from',
    node_id UUID COMMENT 'Node that sent it',
    INDEX segments segment_id TYPE bloom_filter(0.001) GRANULARITY 1
) ENGINE = MergeTree
PARTITION BY day ORDER BY (sandbox_id, class, revision)
TTL day + INTERVAL 400 DAY
SETTINGS non_replicated_deduplication_window = 10000, ttl_only_drop_parts = 1, fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'What could be seen, by sandbox and class. Unknown is not clean.';
