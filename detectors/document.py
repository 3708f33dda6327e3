"""docs/detectors.md, written from what the detectors declare.

python -m invigilator.detectors.document > docs/detectors.md
"""

from __future__ import annotations

from collections.abc import Iterator

from invigilator.detectors.base import BULK, SIGN, STRONG, Detector, registry

INVISIBLE = """## Not visible to a kernel sensor

Some cheating leaves no trace in system calls: objects that compare equal to anything, hollow implementations
that only satisfy the visible tests, memory theft inside one process (a test's frames, a judge's variables),
forged transcripts of tool calls that never ran, and a verdict changed by the agent's code inside the one
process that both runs it and writes the verdict. No detector here claims to see them; read the submission,
run hidden tests, and compare the transcript with the recorded steps.

Visible, and of no kind yet: rights taken from a test, and what is planted and never loaded: files that others
load by themselves (a new conftest.py, *.pth, usercustomize.py, ~/.bashrc, /etc/ld.so.preload), hooks and
aliases of git. Those are looked at where the verifier loads them (`verifier_tool_trojan`); the environment of
a program (PYTEST_ADDOPTS, PYTHONPATH) is seen only by the start-up file that sets it, and PYTHONSTARTUP is
read by interactive interpreters alone. The verdict that such a file writes in verify is `reward_forge`.

Never told from honest work: a walk that reads 32 other files, or three of the same sort, as grep does; a pack
read by another program than git; a project called pytest that pip builds itself.
"""


def text() -> str:
    """The whole document."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield "# Detectors"
    yield ""
    yield "Written by `python -m invigilator.detectors.document` from what each detector declares; do not"
    yield "edit it here."
    yield ""
    yield f"An incident's confidence says what it rests on: from {STRONG} on it is proof; {BULK} is left to"
    yield f"what a process came upon while it walked a whole tree; {SIGN} is what honest work does too. Signs"
    yield "are kept and shown, and cost nothing under the default `min_confidence`."
    yield ""
    yield "| kind | channel | severity | tries cost | phase must be known | needs |"
    yield "|---|---|---|---|---|---|"
    for detector in registry().values():
        needs = ", ".join(sorted(need.name.lower() for need in detector.needs)) or "–"
        yield (
            f"| [`{detector.id}`](#{detector.id}) | {detector.channel} | {detector.severity} |"
            f" {_tries(detector)} | {'yes' if detector.phase_bound else 'no'} | {needs} |"
        )
    for detector in registry().values():
        yield from _section(detector)
    yield ""
    yield INVISIBLE


def _section(detector: type[Detector]) -> Iterator[str]:
    yield ""
    yield f"## {detector.id}"
    yield ""
    yield detector.meaning
    yield ""
    attack = ", ".join(detector.attack) or "–"
    yield f"Version {detector.version}. ATT&CK: {attack}. {_how(detector)}".rstrip()
    if detector.thresholds:
        yield ""
        yield "| threshold | default | meaning |"
        yield "|---|---|---|"
        for threshold in detector.thresholds:
            default = f"{threshold.default:g} {threshold.unit}".strip()
            yield f"| `{threshold.name}` | {default} | {threshold.meaning} |"


def _how(detector: type[Detector]) -> str:
    words = " ".join((detector.__doc__ or "").split())
    return words if words and words != " ".join((Detector.__doc__ or "").split()) else ""


def _tries(detector: type[Detector]) -> str:
    if detector.drops:
        return "drops the rollout"
    if detector.flood:
        return "`flood`, once"
    return "as a success" if detector.pattern else "`attempts`"


if __name__ == "__main__":
    print(text(), end="")
