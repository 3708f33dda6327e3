-- Of the incidents given, those whose latest decision is to dismiss them.
SELECT incident_id FROM (
    SELECT incident_id, decision FROM reviews
    WHERE decision != 'comment' AND incident_id IN (SELECT arrayJoin(JSONExtract({ids:String}, 'Array(String)')))
    ORDER BY reviewed_at DESC, segment_id LIMIT 1 BY incident_id
) WHERE decision = 'dismiss'
