"""What each version of a detector makes of the kept corpus: a change of verdicts is a new version.

    python -m invigilator.detectors.behaviour     # keeps what today's detectors find

`incidents/corpora/kept/detectors.json` holds, by detector and version, a digest of all its incidents over the
corpus's cases, and which versions a release has shipped (`released`). What was released is never kept anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from invigilator.detectors.base import registry
from invigilator.detectors.engine import Engine
from invigilator.incidents.corpora import loader
from invigilator.incidents.corpora.loader import Case
from invigilator.incidents.records import Incident
from invigilator.profiles import library

KEPT = Path(loader.__file__).resolve().parent / "kept"
"""The corpus of a checkout; an installed package has none."""
DIGESTS = "detectors.json"


class ReleasedError(Exception):
    """Verdicts of a released version changed: the message says whose version must be raised."""


@dataclass(frozen=True, slots=True)
class Known:
    """`digests`: detector → version → digest. `released`: detector → released versions."""

    digests: Mapping[str, Mapping[str, str]]
    released: Mapping[str, list[str]]


def judge(case: Case) -> list[Incident]:
    """The incidents of a kept case, by today's detectors and the policy that it was recorded under."""
    found = library.load_text(case.record.policy, f"{case.name}.yaml")
    engine = Engine(found.policy, case.record.sandbox_id, case.record.wall_offset_ns)
    engine.feed(case.events())
    engine.finish()
    return engine.incidents()


def digests(cases: Iterable[Case]) -> dict[str, str]:
    """Detector → digest of what it finds over the cases: verdicts and their events, not their wording."""
    sums = {name: hashlib.sha256() for name in registry()}
    for case in cases:
        for incident in judge(case):
            line = json.dumps([case.name, *_verdict(incident)], separators=(",", ":"))
            sums[incident.detector.id].update(line.encode() + b"\n")
    return {name: one.hexdigest() for name, one in sums.items()}


def read(folder: Path = KEPT) -> Known:
    """What is kept."""
    held = json.loads((folder / DIGESTS).read_text()) if (folder / DIGESTS).exists() else {}
    return Known(held.get("digests", {}), held.get("released", {}))


def changed(known: Known, now: Mapping[str, str]) -> list[str]:
    """Detectors whose verdicts are not those kept of their version."""
    return [
        name
        for name, detector in registry().items()
        if known.digests.get(name, {}).get(str(detector.version)) != now[name]
    ]


def keep(folder: Path = KEPT) -> list[str]:
    """Keep what today's detectors find; who changed. `ReleasedError` where a released version would."""
    known, now = read(folder), digests(loader.load(folder))
    news = changed(known, now)
    frozen = [n for n in news if str(registry()[n].version) in known.released.get(n, [])]
    if frozen:
        raise ReleasedError(f"raise the version of {', '.join(frozen)}: a released one found otherwise")
    merged = {
        name: {**known.digests.get(name, {}), str(detector.version): now[name]}
        for name, detector in registry().items()
    }
    content = {"released": dict(known.released), "digests": merged}
    (folder / DIGESTS).write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    return news


def _verdict(incident: Incident) -> list[object]:
    plain = incident.model_dump(mode="json")
    return [*(plain[field] for field in _FIELDS), [fact["event"] for fact in incident.evidence]]


_FIELDS = (
    "kind",
    "outcome",
    "use",
    "intent",
    "confidence",
    "phase",
    "step_id",
    "count",
    "first_at",
    "last_at",
)


if __name__ == "__main__":
    print("\n".join(keep()) or "nothing changed")
