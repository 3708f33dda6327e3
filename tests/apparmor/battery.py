"""The attacks of `profiles/attacks.yaml`, run in sandboxes whose tiers are switched off one by one."""

from __future__ import annotations

import contextlib
import os
import select
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from invigilator.profiles import library, protected, seccomp
from invigilator.profiles.policy import PhaseName, Policy
from invigilator.sandbox import confinement, masks, recipe
from invigilator.sandbox.audit import AuditReader, Refusal
from invigilator.sandbox.base import SandboxSpec, Streams
from invigilator.sandbox.commands import Command
from invigilator.sandbox.process import ProcessBackend, ProcessSandbox

FOLDER = Path(__file__).resolve().parent
BATTERY = Path(library.__file__).with_name("attacks.yaml")
TOOL = Path("/run/out/raw")
"""`tools/raw.c`, compiled before the guest was booted."""
LIBRARY = ("base", "no-network", "swe-task", "web-browsing")
STRICT = str(FOLDER / "policies/strict.yaml")
TIERS = ("apparmor", "seccomp", "mount", "capabilities")
EVERY_CAPABILITY = (1 << 41) - 1
ANSWER_S = 30.0
MARK_S = 5.0
PLANTED = {
    "/grader/tests.py": b"assert answer == 42\n",
    "/solution/answer.txt": b"42\n",
    "/var/log/harness/run.log": b"started\n",
    "/logs/verifier/old.txt": b"0\n",
    "/workspace/tests/test_a.py": b"def test_a(): pass\n",
}


@dataclass(frozen=True)
class Attack:
    """One row of the battery; see the head of `attacks.yaml`."""

    id: str
    does: str
    script: str
    tiers: tuple[str, ...]
    class_: str | None = None
    always: str | None = None
    once: bool = False
    unless: str | None = None

    def concerns(self, policy: Policy) -> bool:
        """Whether the policy means to refuse it."""
        if self.unless is not None and getattr(policy.syscalls, self.unless) == "allow":
            return False
        if self.class_ is None:
            return True
        access = protected.class_access(policy, "agent").get(self.class_)
        return access is not None and "deny" in access


def attacks() -> list[Attack]:
    """All rows."""
    rows = yaml.safe_load(BATTERY.read_text())["attacks"]
    return [Attack(class_=row.pop("class", None), tiers=tuple(row.pop("tiers")), **row) for row in rows]


def policy_of(name: str) -> Policy:
    """A policy of the library, or the test's own."""
    return library.load(STRICT if name == "strict" else name)


@dataclass(frozen=True)
class Outcome:
    """`worked`: the attack's exit status was 0. `said`: its output. `records`: what audit told of it."""

    worked: bool
    said: str
    records: tuple[Refusal, ...]


@contextlib.contextmanager
def only(tiers: frozenset[str]) -> Iterator[None]:
    """Sandboxes that are made here have these tiers alone."""
    with pytest.MonkeyPatch.context() as patch:
        if "seccomp" not in tiers:
            patch.setattr(seccomp, "compile", lambda policy, phase: seccomp.ALLOW_ALL)
        if "mount" not in tiers:
            patch.setattr(masks, "needed", lambda policy: False)
            patch.setattr(masks, "denied", lambda policy: {})
        if "capabilities" not in tiers:
            patch.setattr(confinement, "capabilities", lambda platform: EVERY_CAPABILITY)
            real = recipe.Recipe
            patch.setattr(recipe, "Recipe", lambda **fields: real(**{**fields, "nested_users": True}))
        yield


@dataclass
class Shell:
    """A bash in the sandbox that runs one script after another, each in a process of its own."""

    sandbox: ProcessSandbox
    phase: PhaseName
    _into: int = -1
    _out: int = -1
    _command: Command | None = None
    _held: bytes = field(default=b"")

    def __enter__(self) -> Shell:
        stdin, self._into = os.pipe2(os.O_CLOEXEC)
        self._out, stdout = os.pipe2(os.O_CLOEXEC)
        streams = Streams(stdin, stdout, stdout)
        command = self.sandbox.execute(["bash"], phase=self.phase, streams=streams, cwd="/workspace")
        assert isinstance(command, Command)
        self._command = command
        os.close(stdin)
        os.close(stdout)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._into)
        assert self._command is not None
        self._command.wait(5)
        os.close(self._out)

    def run(self, script: str) -> tuple[int, str]:
        """(exit status, output)."""
        os.write(
            self._into, f"(\n{script}\n) </dev/null 2>&1; status=$?; echo; echo __${{status}}__\n".encode()
        )
        deadline = time.monotonic() + ANSWER_S
        while not self._held.endswith(b"__\n"):
            ready, _, _ = select.select([self._out], [], [], max(0.0, deadline - time.monotonic()))
            if not ready or not (more := os.read(self._out, 65536)):
                raise TimeoutError(f"no answer to {script!r}: {self._held!r}")
            self._held += more
        said, _, status = self._held.decode(errors="replace").removesuffix("__\n").rpartition("\n__")
        self._held = b""
        return int(status), said.strip()


def refusals(reader: AuditReader, mark: int) -> tuple[Refusal, ...]:
    """All that audit tells up to now."""
    found: list[Refusal] = []
    reader.set_mark(mark)
    deadline = time.monotonic() + MARK_S
    while reader.mark < mark and time.monotonic() < deadline:
        select.select([reader], [], [], 0.05)
        found += reader.read()
    assert reader.mark >= mark, "the audit records do not come"
    return tuple(found)


def run(
    backend: ProcessBackend, policy: Policy, tiers: frozenset[str], chosen: list[Attack]
) -> Mapping[str, Outcome]:
    """Every attack in one sandbox with these tiers, everything put back before each."""
    with only(tiers):
        box = backend.prepare(SandboxSpec(uuid.uuid4(), policy))
        if "apparmor" not in tiers:
            backend._shared.profiles.give_back(box._profiles)
            box._profiles = {}
        try:
            box.start()
            return _attack_all(box, chosen)
        finally:
            box.remove()


def _attack_all(box: ProcessSandbox, chosen: list[Attack]) -> Mapping[str, Outcome]:
    found: dict[str, Outcome] = {}
    reader = AuditReader()
    try:
        _plant(box)
        with Shell(box, "verify") as verifier, Shell(box, "agent") as agent:
            _, pid = verifier.run("echo $$")
            agent.run("exit 0")
            for number, attack in enumerate(chosen, 1):
                refusals(reader, 2 * number)
                status, said = agent.run(f"VERIFIER={pid}; PATH=$PATH:/tmp/tools\n{attack.script}")
                found[attack.id] = Outcome(status == 0, said, refusals(reader, 2 * number + 1))
                if status == 0:
                    verifier.run(RESTORE)
    finally:
        reader.close()
    return found


RESTORE = """
rm -rf /tmp/moved /tmp/logs /tmp/hard /tmp/reward /tmp/mine /logs
cp -a /tmp/kept/. /
"""
"""After an attack that worked: what the next ones are after is there again."""


def _plant(box: ProcessSandbox) -> None:
    for path, content in PLANTED.items():
        box.write_file(path, content)
    box.write_file("/tmp/tools/raw", TOOL.read_bytes(), 0o755)
    for path in PLANTED:
        box.write_file(f"/tmp/kept{path}", PLANTED[path])


def told_of(outcome: Outcome) -> bool:
    """Whether audit tells of a refusal by the sandbox's profile or its filter."""
    return any(_ours(one) and not one.allowed for one in outcome.records)


def _ours(record: Refusal) -> bool:
    return record.tier == "seccomp" or record.fields.get("profile", b"").startswith(b"invigilator-")
