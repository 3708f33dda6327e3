-- What was forgotten: rows of these sandboxes that come late are taken out again.
CREATE TABLE forgotten (
    at DateTime64(6, 'UTC') DEFAULT now64(6) COMMENT 'When it was forgotten',
    sandbox_id UUID COMMENT 'The sandbox'
) ENGINE = MergeTree ORDER BY sandbox_id
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
COMMENT 'Sandboxes whose rows were removed, and are removed again where they come late.';
