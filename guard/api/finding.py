"""One incident by the first digits of its id, as a caller may see it."""

from __future__ import annotations

import json
from typing import Any

from invigilator.guard.api.access import Caller
from invigilator.guard.api.problem import ProblemError
from invigilator.guard.api.reading import fetch
from invigilator.incidents.store import Store

ID_DIGITS_MIN = 6
"""So many digits of an incident's id name it, where no other begins with them."""


def whole(store: Store, incident_id: str, caller: Caller) -> dict[str, Any]:
    """The incident whose id begins so, with evidence and reviews; 404 where the caller may see none."""
    parameters = {"incident_id": incident_id, "monitor_only": int(caller.may("monitor_only"))}
    found = fetch(store, "incident", parameters)
    if found and len(incident_id) < ID_DIGITS_MIN:
        raise ProblemError(
            404,
            "no-such-incident",
            f"{incident_id!r} is too short to tell incidents apart",
            fix=f"give at least {ID_DIGITS_MIN} digits of the id",
        )
    if not found:
        raise ProblemError(404, "no-such-incident", f"there is no incident {incident_id!r}")
    if len(found) > 1 and found[0]["id"] != incident_id:
        raise ProblemError(409, "ambiguous-incident", f"several incidents begin with {incident_id!r}")
    evidence = [json.loads(text) for text in found[0]["evidence"]]
    reviews = fetch(store, "reviews", {"incident_id": found[0]["id"]})
    return {**found[0], "evidence": evidence, "reviews": reviews}
