SELECT (SELECT count() FROM falco_alerts) AS alerts, (SELECT count() FROM rollouts) AS verdicts
