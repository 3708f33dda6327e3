"""The labelled scenarios: what a suite's YAML says, checked and merged into cases that can be run.

A suite is a folder: `suite.yaml` (shared policy, stages, snippets, fixtures), `cases/*.yaml` (one file a
kind: misbehaviour by several methods, and its look-alikes), `honest/*.yaml` (honest work in bulk) and
`versions.json` (each case's version and digest: a changed case under an old version is refused).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from invigilator.guard.errors import GuardError
from invigilator.incidents.records import Outcome
from invigilator.profiles.policy import PhaseName

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader, ten times as fast, where it is built in."""
ANY_OUTCOME: tuple[Outcome, ...] = ("denied", "failed", "success")
DEFAULT_SUITE = Path(__file__).resolve().parents[2] / "tests" / "scenarios"
"""The suite of a checkout; an installed package has none."""


class SuiteError(GuardError):
    """A suite that cannot be read, or contradicts itself."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Step(_Part):
    """One command. Exactly one of `run` (bash), `python` and `c` (source text) says what; `exit` is the
    status it must end with. `timeout_s` bounds it."""

    phase: PhaseName = "agent"
    actor: Literal["agent", "platform"] | None = None
    id: str | None = None
    run: str | None = None
    python: str | None = None
    c: str | None = None
    env: dict[str, str] = {}
    timeout_s: float = 15.0
    exit: int | Literal["any"] = 0

    @model_validator(mode="after")
    def _one_command(self) -> Step:
        if sum(text is not None for text in (self.run, self.python, self.c)) != 1:
            raise ValueError("a step has exactly one of run, python and c")
        return self

    @property
    def by(self) -> Literal["agent", "platform"]:
        """Whose command it is: in setup and verify the platform's unless it says otherwise."""
        return self.actor or ("agent" if self.phase == "agent" else "platform")

    def command(self) -> list[str]:
        """The argument vector."""
        prefix = ["env", *(f"{k}={v}" for k, v in self.env.items())] if self.env else []
        if self.python is not None:
            return [*prefix, "python3", "-c", self.python]
        return [*prefix, "bash", "-c", self.run if self.run is not None else _compile_and_run(self.c or "")]


NOT_COMPILED = 113
"""Exit status of a `c` step whose source does not compile: then the case is broken, whatever it permits."""


def _compile_and_run(source: str) -> str:
    mark = "END_OF_C_SOURCE"
    return (
        f"d=$(mktemp -d) && cat > $d/p.c <<'{mark}'\n{source}\n{mark}\n"
        "cc=$(command -v cc || command -v gcc || command -v clang)\n"
        f'"$cc" -w -O1 -o $d/p $d/p.c || exit {NOT_COMPILED}\nexec $d/p'
    )


class Expectation(_Part):
    """An incident that must be found: its kind, with one of these outcomes."""

    kind: str
    outcome: list[Outcome] = list(ANY_OUTCOME)


class Fetch(_Part):
    """What is brought from registries on the host beforehand (the sandbox has no Internet): `source` unpacks
    one sdist into the workspace, `wheels`, `debs` and `tarballs` (npm) fill the folder `into` below it."""

    source: str | None = None
    wheels: list[str] = []
    debs: list[str] = []
    tarballs: list[str] = []
    into: str = "."


class Case(_Part):
    """One scenario. `benign`: no incident may count against it. `allow`: kinds that may be found beside what
    is expected. `expect_if_lost`: expected where the sensor lost events of the sandbox. `digest`: SHA-256 of
    what the case's own text says, but for title and version, so that a change is seen."""

    kind: str
    id: str
    version: int
    title: str
    benign: bool = False
    honest: bool = False
    slow: bool = False
    policy: dict[str, Any] = {}
    fixture: str = "project"
    stage: str = "platform"
    agent: Literal["shared", "small-rings", "middle-rings"] = "shared"
    fetch: list[Fetch] = []
    requires: list[str] = []
    steps: list[Step]
    expect: list[Expectation] = []
    expect_if_lost: list[Expectation] = []
    allow: list[str] = []
    digest: str = ""

    @model_validator(mode="after")
    def _labelled(self) -> Case:
        if self.benign and (self.expect or self.expect_if_lost):
            raise ValueError("a benign case expects no incident")
        if not self.benign and not self.expect and not self.expect_if_lost:
            raise ValueError("a case that is not benign says what it expects")
        return self

    @property
    def name(self) -> str:
        """`kind/id`, unique in a suite."""
        return f"{self.kind}/{self.id}"


@dataclass(frozen=True, slots=True)
class Suite:
    """A loaded suite. `fixtures` and `stages` are bash texts by name; `digest` is of what all cases share."""

    folder: Path
    version: int
    digest: str
    fixtures: Mapping[str, str]
    stages: Mapping[str, str]
    cases: tuple[Case, ...]

    def select(self, patterns: Iterable[str] = (), *, honest: bool = False) -> tuple[Case, ...]:
        """Cases whose name holds one of `patterns` (all without any); honest work only with `honest`."""
        wanted = tuple(patterns)
        return tuple(
            case
            for case in self.cases
            if (honest or not case.honest) and (not wanted or any(p in case.name for p in wanted))
        )


def load_suite(folder: Path = DEFAULT_SUITE) -> Suite:
    """Read and check a suite; `SuiteError` says which file and what is wrong."""
    if not (folder / "suite.yaml").is_file():
        raise SuiteError(
            "no suite of scenarios here",
            where=str(folder),
            fix="run it from a checkout, or name the folder that holds suite.yaml",
        )
    shared = _read(folder / "suite.yaml")
    cases = [
        case
        for part, honest in (("cases", False), ("honest", True))
        for file in sorted((folder / part).glob("*.yaml"))
        for case in _cases(file, shared, honest)
    ]
    names = [case.name for case in cases]
    if doubled := {name for name in names if names.count(name) > 1}:
        raise SuiteError(f"a case's name appears twice: {', '.join(sorted(doubled))}", where=str(folder))
    suite = Suite(
        folder=folder,
        version=int(shared["version"]),
        digest=_digest({key: value for key, value in shared.items() if key != "version"}),
        fixtures=shared["fixtures"],
        stages=shared["stages"],
        cases=tuple(cases),
    )
    for case in suite.cases:
        if case.fixture not in suite.fixtures or case.stage not in suite.stages:
            raise SuiteError(f"{case.name}: unknown fixture or stage", where=str(folder))
    return suite


def _cases(file: Path, shared: Mapping[str, Any], honest: bool) -> list[Case]:
    content = _read(file)
    cases = []
    for raw in [twin for written in content["cases"] for twin in _with_twin(written)]:
        try:
            steps = [_with_snippet(step, shared["snippets"]) for step in raw.get("steps", ())]
            policy = merge(shared["policy"], raw.get("policy", {}))
            body = {**raw, "kind": content["kind"], "honest": honest, "steps": steps, "policy": policy}
            body["digest"] = _digest({k: v for k, v in raw.items() if k not in ("title", "version")})
            cases.append(Case.model_validate(body))
        except (ValidationError, KeyError) as error:
            raise SuiteError(f"case {raw.get('id')!r}: {error}", where=str(file)) from error
    return cases


def _with_twin(raw: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The case, and where it has `observed: [outcome, …]` its twin under a policy that refuses nothing, so
    that every step has to succeed."""
    enforced = {key: value for key, value in raw.items() if key != "observed"}
    yield enforced
    if outcomes := raw.get("observed"):
        yield {
            **enforced,
            "id": f"observed-{raw.get('id')}",
            "policy": merge(raw.get("policy", {}), {"mode": "observe"}),
            "steps": [{**step, "exit": 0} for step in raw["steps"]],
            "expect": [{**expectation, "outcome": outcomes} for expectation in raw.get("expect", ())],
        }


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _with_snippet(step: Mapping[str, Any], snippets: Mapping[str, Any]) -> dict[str, Any]:
    if "snippet" not in step:
        return dict(step)
    return {**snippets[step["snippet"]], **{key: value for key, value in step.items() if key != "snippet"}}


def _read(file: Path) -> dict[str, Any]:
    try:
        content = yaml.load(file.read_text(), Loader=_Loader)
    except (OSError, yaml.YAMLError) as error:
        raise SuiteError(f"cannot be read: {error}", where=str(file)) from error
    if not isinstance(content, dict):
        raise SuiteError("holds no mapping", where=str(file))
    return content


def merge(base: Any, over: Any) -> Any:
    """`over` laid onto `base`: mappings merge key by key, everything else replaces."""
    if isinstance(base, dict) and isinstance(over, dict):
        return {**base, **{key: merge(base.get(key), value) for key, value in over.items()}}
    return over


def versions_of(suite: Suite) -> dict[str, list[Any]]:
    """Name → [version, digest] of every case and of `suite.yaml`, as `versions.json` keeps it."""
    cases = {case.name: [case.version, case.digest] for case in suite.cases}
    return {"suite": [suite.version, suite.digest], **cases}


def unversioned_changes(suite: Suite) -> list[str]:
    """Names whose content differs from `versions.json` under the same version, or that are not in it."""
    kept = _kept_versions(suite)
    return [
        name
        for name, (version, digest) in versions_of(suite).items()
        if name not in kept or (kept[name][0] == version and kept[name][1] != digest)
    ]


def write_versions(suite: Suite) -> None:
    """Record every version and digest; refuses a change that has no new version."""
    known = _kept_versions(suite)
    if changed := [name for name in unversioned_changes(suite) if name in known]:
        raise SuiteError(f"changed without a new version: {', '.join(changed)}", where=str(suite.folder))
    text = json.dumps(versions_of(suite), indent=1, sort_keys=True)
    (suite.folder / "versions.json").write_text(text + "\n")


def _kept_versions(suite: Suite) -> dict[str, list[Any]]:
    file = suite.folder / "versions.json"
    return dict(json.loads(file.read_text())) if file.is_file() else {}
