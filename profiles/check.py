"""`guard policy check`: everything that is wrong or doubtful in a policy, in the order of its places."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from invigilator.profiles import apparmor, library, seccomp
from invigilator.profiles.access import PHASES
from invigilator.profiles.apparmor import ParserMissingError, parser, raw
from invigilator.profiles.apparmor.parser import CompileError
from invigilator.profiles.errors import PolicyError, Problem
from invigilator.profiles.kinds import kinds
from invigilator.profiles.library import Loaded
from invigilator.profiles.validate import suggest


@dataclass(frozen=True, slots=True)
class DetectorFacts:
    """What check must know of a detector that is there: its thresholds' names, and the kind it judges."""

    kind: str
    thresholds: frozenset[str] = field(default_factory=frozenset)


def check(name_or_path: str, detectors: Mapping[str, DetectorFacts] | None = None) -> list[Problem]:
    """Errors and warnings of a policy; no errors means that it can be used.

    `detectors`: those that are installed, by id; without them only the library's knowledge is used.
    """
    try:
        loaded, errors = library.examine(name_or_path)
    except PolicyError as error:
        return list(error.problems)
    return _in_order([*errors, *check_loaded(loaded, detectors)])


def check_loaded(loaded: Loaded, detectors: Mapping[str, DetectorFacts] | None = None) -> list[Problem]:
    """As `check`, of a policy that was loaded: warnings, and errors that need the installed detectors."""
    problems = [
        *loaded.warnings,
        *_weights(loaded),
        *_syscalls(loaded),
        *_dropped_denials(loaded),
        *_profiles(loaded),
    ]
    if detectors is not None:
        problems += _installed(loaded, detectors)
    return _in_order(problems)


def _in_order(problems: Iterable[Problem]) -> list[Problem]:
    def place(problem: Problem) -> tuple[str, int, int, str]:
        return problem.place.file, problem.place.line, problem.place.column, problem.message

    return sorted(set(problems), key=place)


def _weights(loaded: Loaded) -> Iterator[Problem]:
    """Weights of the policy's own for kinds that `guard eval` has not shown to spare honest work."""
    for kind, weight in loaded.policy.penalty.weights.items():
        where = ("penalty", "weights", kind)
        known = kinds().get(kind)
        if not loaded.has(where) or known is None:
            continue
        if weight > 0 and not known.clean:
            message = f"`{kind}` is given weight {weight:g}, though `guard eval` has not shown it clean"
            yield _warning(loaded, where, message, "run `guard eval` first, or leave it to the library")
        elif weight == 0 and known.cheat and known.clean:
            yield _warning(
                loaded, where, f"`{kind}` costs nothing", f"the library's weight is {known.weight:g}"
            )


def _syscalls(loaded: Loaded) -> Iterator[Problem]:
    try:
        seccomp.known("read")
    except RuntimeError as error:
        yield _warning(loaded, ("syscalls",), f"system calls were not checked: {error}", "")
        return
    listed: list[tuple[tuple[str | int, ...], str]] = [
        (("syscalls", "deny", index), name) for index, name in enumerate(loaded.policy.syscalls.deny)
    ]
    for number, rule in enumerate(loaded.policy.seccomp.raw):
        listed += [
            (("seccomp", "raw", number, "names", index), name) for index, name in enumerate(rule.names)
        ]
    for where, name in listed:
        if not seccomp.known(name):
            message = f"this machine's libseccomp knows no system call `{name}`: it is not refused"
            yield _warning(loaded, where, message, "check the spelling (man 2 syscalls)")


def _profiles(loaded: Loaded) -> Iterator[Problem]:
    """What apparmor_parser says of the rules in its own language."""
    policy = loaded.policy
    for phase in PHASES:
        if not raw.of(policy, phase):
            continue
        try:
            parser.run(apparmor.compile(loaded, phase), None)
        except PolicyError as error:
            yield from error.problems
        except (ParserMissingError, CompileError) as error:
            yield _warning(loaded, ("apparmor", "raw"), f"these rules were not checked: {error}", "")


def _dropped_denials(loaded: Loaded) -> Iterator[Problem]:
    """A list replaces its parent's: refusals that are gone without a word."""
    if len(loaded.files) < 2 or not loaded.has(("syscalls", "deny")):
        return
    if loaded.place(("syscalls", "deny")).file != loaded.files[0]:
        return
    gone = set(library.load("base").syscalls.deny) - set(loaded.policy.syscalls.deny)
    if gone and "library/base.yaml" in loaded.files:
        message = f"this list replaces base's and no longer refuses {', '.join(sorted(gone))}"
        yield _warning(loaded, ("syscalls", "deny"), message, "begin it with `...` to keep them")


def _installed(loaded: Loaded, detectors: Mapping[str, DetectorFacts]) -> Iterator[Problem]:
    policy = loaded.policy
    for detector, thresholds in policy.detectors.thresholds.items():
        if detector not in detectors:
            continue
        for name in thresholds:
            if name not in detectors[detector].thresholds:
                yield _unknown_threshold(loaded, detector, name, sorted(detectors[detector].thresholds))
    enabled = {facts.kind for id_, facts in detectors.items() if id_ not in policy.detectors.disabled}
    for name, protected in policy.filesystem.protected.items():
        watching = {kind for kind, facts in kinds().items() if name in facts.classes}
        if protected.paths and watching and not watching & enabled:
            where = ("filesystem", "protected", name)
            message = f"no enabled detector watches the class `{name}`"
            yield _warning(loaded, where, message, f"it takes one of {', '.join(sorted(watching))}")


def _unknown_threshold(loaded: Loaded, detector: str, name: str, known: Sequence[str]) -> Problem:
    meant = suggest(name, known)
    fix = f"write `{meant}`" if meant else f"it has: {', '.join(known) or 'none'}"
    place = loaded.place(("detectors", "thresholds", detector, name))
    return Problem(place, f"`{detector}` has no threshold `{name}`", fix)


def _warning(loaded: Loaded, where: Sequence[str | int], message: str, fix: str) -> Problem:
    return Problem(loaded.place(where), message, fix, "warning")
