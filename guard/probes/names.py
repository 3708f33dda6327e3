"""Whether names in egress rules can be resolved here."""

from __future__ import annotations

import importlib.util

from invigilator.guard.probes.finding import Finding
from invigilator.sandbox.resolver import upstream

GIVES = "egress rules by name: the guard's resolver"


def names() -> Finding:
    """The name servers that the guard asks, asked once."""
    if importlib.util.find_spec("dns") is None:
        return Finding(
            "cgroup", "names", "no", "dnspython is missing", GIVES, "pip install 'invigilator[node]'"
        )
    try:
        servers, answers = upstream.reachable()
    except upstream.SettingError as error:
        return Finding("cgroup", "names", "no", str(error), GIVES, f"correct {upstream.VARIABLE}")
    listed = ", ".join(map(str, servers))
    if answers:
        return Finding("cgroup", "names", "yes", f"{listed} answers", GIVES)
    found = f"no answer from {listed}" if servers else "no name server in /etc/resolv.conf"
    fix = f"name servers in /etc/resolv.conf, or in {upstream.VARIABLE}"
    return Finding("cgroup", "names", "no", found, GIVES, fix)
