-- What the last day's verdicts were, in rows of (what, one, two, n).
SELECT 'incidents' AS what, toString(kind) AS one, toString(outcome) AS two, toFloat64(count()) AS n
FROM incidents_current WHERE recorded_at > now() - INTERVAL 1 DAY GROUP BY one, two
UNION ALL
SELECT 'rollouts', toString(status), '', toFloat64(count())
FROM rollouts_current WHERE recorded_at > now() - INTERVAL 1 DAY GROUP BY 2
UNION ALL
SELECT 'dropped', '', '', toFloat64(countIf(drop))
FROM penalties_current WHERE recorded_at > now() - INTERVAL 1 DAY
UNION ALL
SELECT 'events', '', '', toFloat64(sum(produced))
FROM sandboxes_current WHERE recorded_at > now() - INTERVAL 1 DAY
UNION ALL
SELECT 'lost', splitByChar('/', reason)[1], splitByChar('/', reason)[2], toFloat64(sum(number))
FROM (
    SELECT pair.1 AS reason, pair.2 AS number
    FROM sandboxes_current ARRAY JOIN CAST(lost_by, 'Array(Tuple(String, UInt64))') AS pair
    WHERE recorded_at > now() - INTERVAL 1 DAY
)
GROUP BY 2, 3
