"""Whether a policy holds: what was recorded runs under it with nothing refused, and attacks are refused."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from invigilator.guard import attacks, learning
from invigilator.guard.attacks import Attack
from invigilator.guard.box import Result
from invigilator.guard.errors import GuardError
from invigilator.guard.sync import SyncSandbox
from invigilator.profiles import access, network, pins, protected, seccomp
from invigilator.profiles.learning import Connection, Recording
from invigilator.profiles.learning.network import own_ports
from invigilator.profiles.names import DNS_PORT, canonical, has_names
from invigilator.profiles.policy import AppArmorRules, Policy
from invigilator.sandbox.resolver.upstream import lookup

if TYPE_CHECKING:
    from invigilator.guard.research import Invigilator
    from invigilator.incidents.records import Report

RUN = "proof"
"""The run of a proof's rollouts, by which a researcher's queries can leave them out."""
TIMEOUT_S = 600.0
ATTACK_S = 30.0
NOT_RUN = (126, 127)
"""Exit statuses of a shell that did not find, or could not start, a program."""
CUT_OFF = ("timeout", "oom", "limit")
"""Ends of an attack that say nothing of it."""
INSIDE: Literal["capabilities"] = "capabilities"
"""A tier that every sandbox has."""
State = Literal["proven", "failed", "not shown"]


@dataclass(frozen=True, slots=True)
class Case:
    """A recorded rollout; `command` instead of what its record holds, where it is not empty."""

    report: Report
    facts: Recording
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that was put to the test. `tier`: what had to refuse, or let."""

    what: str
    state: State
    tier: str
    found: str


@dataclass(frozen=True, slots=True)
class Options:
    """Where the sandboxes of a proof are made."""

    workspace: Path | None
    root: Path | None
    home: Path | None


def prove(
    record: Invigilator,
    policy: Policy,
    cases: Sequence[Case],
    *,
    workspace: Path | None = None,
    root: Path | None = None,
    home: Path | None = None,
    without: frozenset[str] = frozenset(),
) -> list[Row]:
    """What was recorded, and the attacks, under `policy`. `without` apparmor, the rest of the policy is.
    GuardError where nothing can be, as where a tier that the policy requires is missing."""
    if without - {"apparmor"}:
        raise GuardError(f"no policy is proven without {', '.join(sorted(without))}", where="--without")
    options = Options(workspace, root, home)
    running = without_apparmor(policy) if without else policy
    rows = [row for case in cases for row in stated(policy, case)]
    for case in cases:
        rows += _again(record, running, case, options)
    rows += _attacked(running, options)
    if without:
        rows.append(
            Row("what only AppArmor refuses", "not shown", "apparmor", "left out by --without apparmor")
        )
    return rows


def without_apparmor(policy: Policy) -> Policy:
    """What of a policy the other tiers put in force."""
    files = policy.filesystem
    rules = [rule.model_copy(update={"deny": []}) for rule in files.files]
    phases = {
        name: one.model_copy(update={"apparmor": None, "protected": {}})
        for name, one in policy.phases.items()
    }
    return policy.model_copy(
        update={
            "filesystem": files.model_copy(update={"default_action": "allow", "files": rules}),
            "apparmor": AppArmorRules(),
            "phases": phases,
            "require": [tier for tier in policy.require if tier != "apparmor"],
        }
    )


def stated(policy: Policy, case: Case) -> Iterator[Row]:
    """What the policy itself says of each recorded use and connection."""
    classes = protected.PathClasses(policy)
    refused = []
    for use in sorted(case.facts.uses):
        decision = access.decide(policy, "agent", use.access, use.path)
        by_class = decision is None and classes.access(use.path, access.SIDES[use.access]) == "deny"
        if by_class or (decision is not None and decision.denied):
            refused.append(f"{use.access} {use.path.decode('utf-8', 'backslashreplace')}")
    title = f"{case.report.rollout_id}: {len(case.facts.uses)} recorded uses of files are allowed"
    yield Row(title, "failed" if refused else "proven", "policy", _few(refused, "denied"))
    yield _connections(policy, case)
    own = own_ports(network.compile(policy, "agent", lookup))
    taken = [_said(one) for one in sorted(case.facts.binds) if not own.decide(*one)[0]]
    title = f"{case.report.rollout_id}: {len(case.facts.binds)} recorded own ports are allowed"
    yield Row(title, "failed" if taken else "proven", "policy", _few(taken, "denied"))


def _connections(policy: Policy, case: Case) -> Row:
    """Below a wildcard only names that were asked for lead anywhere. Where they lead elsewhere by now, the
    policy cannot be held to an address of then."""
    names = sorted(canonical(name.decode("ascii", "replace")) for name in case.facts.asked)
    rules = pins.asked(policy, "agent", names, lookup)
    closed = [
        one
        for one in sorted(case.facts.connections)
        if not (rules.decide(*one)[0] or _is_question(policy, one))
    ]
    moved = [one for one in closed if any(_would_lead(policy, name, one) for name in names)]
    denied = [_said(one) for one in closed if one not in moved]
    title = f"{case.report.rollout_id}: {len(case.facts.connections)} recorded connections are allowed"
    if moved and not denied:
        said = _few([_said(one) for one in moved], "no longer where a name leads")
        return Row(title, "not shown", "policy", said)
    return Row(title, "failed" if denied else "proven", "policy", _few(denied, "denied"))


def _is_question(policy: Policy, one: Connection) -> bool:
    """Whether it went to a name server, whose part the guard's own has under a policy with names."""
    return one.port == DNS_PORT and has_names(policy, ("agent",))


def _would_lead(policy: Policy, name: str, one: Connection) -> bool:
    return pins.leading(policy, "agent", name, network.unmapped(one.address)).decide(*one)[0]


def _said(one: Connection) -> str:
    return f"{one.address.hex()} port {one.port}"


def _few(found: Sequence[str], word: str) -> str:
    if not found:
        return f"0 {word}"
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"{len(found)} {word}: {', '.join(found[:3])}{more}"


def _box(policy: Policy, options: Options, title: str) -> SyncSandbox:
    return SyncSandbox.create(
        policy=policy,
        workspace=options.workspace,
        root=options.root,
        home=options.home,
        run_id=RUN,
        rollout_id=f"{title}-{uuid.uuid4().hex[:12]}",
        labels={"proof": policy.name},
        copy_back=False,
    )


def _again(record: Invigilator, policy: Policy, case: Case, options: Options) -> list[Row]:
    """The recorded commands once more."""
    commands = _commands(case)
    with _box(policy, options, "prove") as box:
        codes = []
        for phase in ("setup", "agent"):
            due = [words for where, words in commands if where == phase]
            if due:
                box.phase("setup" if phase == "setup" else "agent")
            codes += [(phase, box.exec(words, timeout_s=TIMEOUT_S).exit_code) for words in due]
        report = box.verdict()
    again = learning.recording(record, report)
    rollout = case.report.rollout_id
    last = next((code for phase, code in reversed(codes) if phase == "agent"), None)
    before = case.report.exit.code if case.report.exit else None
    same = last == before
    found = [
        Row(f"{rollout}: it ends as it did", "proven" if same else "failed", "all", f"{last}, was {before}")
    ]
    for reason, what in (
        (learning.REFUSED, "no file is refused that was not"),
        (learning.REFUSED_NETWORK, "no connection is refused that was not"),
        (learning.REFUSED_CALL, "no call is refused that was not"),
    ):
        new = sorted(set(again.left_out.get(reason, ())) - set(case.facts.left_out.get(reason, ())))
        said = [one.decode("utf-8", "backslashreplace") for one in new]
        found.append(Row(f"{rollout}: {what}", "failed" if new else "proven", "all", _few(said, "refused")))
    return found


def _commands(case: Case) -> list[tuple[str, list[bytes | str]]]:
    recorded = [one for one in case.facts.commands if one.phase in ("setup", "agent")]
    if case.command:
        setup = [one for one in recorded if one.phase == "setup"]
        known: list[tuple[str, list[bytes | str]]] = [("setup", [*one.arguments]) for one in setup]
        return [*known, ("agent", [*case.command])]
    broken = [one for one in recorded if not one.whole]
    if broken or not any(one.phase == "agent" for one in recorded):
        problem = "the record does not hold its command whole (cut, or a credential was replaced)"
        raise GuardError(problem, where=case.report.rollout_id, fix="give the command after `--`")
    return [(one.phase, [*one.arguments]) for one in recorded]


def _attacked(policy: Policy, options: Options) -> list[Row]:
    rules = network.compile(policy, "agent", lookup)
    closed = [one for one in attacks.ADDRESSES if not rules.decide(*one, network.PROTOCOLS["tcp"])[0]]
    own = own_ports(rules)
    untaken = [one for one in attacks.OWN if not own.decide(*one, network.PROTOCOLS["tcp"])[0]]
    agent = policy.phases.get("agent")
    names = (agent.syscalls if agent and agent.syscalls else policy.syscalls).deny
    found = [
        *attacks.battery(policy),
        *attacks.on_paths(policy),
        *attacks.on_unnamed(policy),
        *attacks.on_calls(
            names, {name: number for name in names if (number := seccomp.number(name)) is not None}
        ),
        *attacks.on_addresses(closed),
        *attacks.on_names(policy),
        *attacks.on_own_ports(untaken),
    ]
    observing = without_apparmor(policy).model_copy(update={"mode": "observe", "require": []})
    control, _ = _run(observing, options, [one for one in found if one.controlled], works=True)
    tried, tiers = _run(policy, options, found, works=False)
    return [_row(one, tried[one.id], control.get(one.id), tiers) for one in found]


def _run(
    policy: Policy, options: Options, chosen: Sequence[Attack], *, works: bool
) -> tuple[dict[str, Result], frozenset[str]]:
    """(attack → how it ended, tiers in force). `works`: one may move or remove what others are after."""
    ended = {}
    with _box(policy, options, "attack") as box:
        _plant(box)
        box.phase("agent")
        for one in chosen:
            if works:
                _plant(box)
            ended[one.id] = box.exec(
                ["bash", "-c", one.script, "attack", one.argument], cwd="/", timeout_s=ATTACK_S
            )
        force = {tier for tier, state in box.enforcement.items() if state == "enforce"}
    return ended, frozenset(force | {INSIDE})


def _plant(box: SyncSandbox) -> None:
    """What attacks are after."""
    for path, content in attacks.PLANTED.items():
        box.write_file(path, content)


def _row(one: Attack, ended: Result, control: Result | None, tiers: frozenset[str]) -> Row:
    code = ended.exit_code
    title, tier = f"attack {one.id}: {one.does}", ", ".join(sorted(tiers & set(one.tiers)))
    if not tier:
        return Row(title, "not shown", "/".join(one.tiers), "no tier that refuses it is in force here")
    if code == 0:
        return Row(title, "failed", tier, "it worked")
    if code in NOT_RUN:
        return Row(title, "not shown", tier, f"what it needs is not in the sandbox (exit status {code})")
    if ended.reason in CUT_OFF:
        return Row(title, "not shown", tier, f"it did not come to its end ({ended.reason})")
    if one.controlled and (control is None or control.exit_code != 0):
        return Row(title, "not shown", tier, "refused, but it fails without the policy too")
    return Row(title, "proven", tier, "refused")
