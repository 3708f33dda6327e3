-- Incidents whose latest decision is to dismiss them.
SELECT incident_id FROM (
    SELECT incident_id, decision FROM reviews WHERE decision != 'comment' AND {{arrived}}
    ORDER BY reviewed_at DESC, segment_id LIMIT 1 BY incident_id
) WHERE decision = 'dismiss'
