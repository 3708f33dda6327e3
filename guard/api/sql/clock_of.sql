-- A sandbox's clock and boot.
SELECT wall_offset_ns, toString(boot_id) AS boot_id FROM sandboxes WHERE sandbox_id = {sandbox_id:UUID}
ORDER BY revision, recorded_at LIMIT 1
