-- How much of what each sandbox did, without a scan of its events.
CREATE VIEW activity_readable AS
SELECT sandbox_id, {{kinds(k)}} AS kind, {{phases(p)}} AS phase, {{actors(w)}} AS actor,
       sum(n) AS events, sum(bad) AS refused, min(a) AS first_at, max(z) AS last_at
FROM (
    SELECT sandbox_id, kind AS k, phase AS p, actor AS w, events AS n, activity.refused AS bad,
           activity.first_at AS a, activity.last_at AS z
    FROM activity FINAL
)
GROUP BY sandbox_id, k, p, w;
