"""`guard policy learn` and `prove`: a policy from recorded rollouts, and whether it holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from invigilator.guard.cli.daemons import HomeOption
from invigilator.guard.cli.policy import PolicyArgument
from invigilator.guard.cli.server import JsonOption, ServerOption, client

if TYPE_CHECKING:
    from collections.abc import Sequence

    from invigilator.guard.research import Invigilator
    from invigilator.incidents.records import Report
    from invigilator.profiles.learning import Learned, Recording

FromOption = Annotated[
    list[str], typer.Option("--from", metavar="ROLLOUT", help="A recorded rollout's id; repeatable.")
]
RunOption = Annotated[str | None, typer.Option("--run", metavar="ID", help="Rollouts of this run.")]


def register(group: typer.Typer) -> None:
    """Add the commands."""
    group.command("learn")(learn_policy)
    group.command("prove", context_settings={"allow_interspersed_args": True})(prove_policy)


def learn_policy(
    rollouts: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="ROLLOUT", help="The id of a rollout that has ended; repeatable."),
    ] = None,
    live: Annotated[
        str | None,
        typer.Option(
            metavar="ROLLOUT", help="The id of a rollout that runs, or begins: until it ends, or Ctrl-C."
        ),
    ] = None,
    extends: Annotated[
        str, typer.Option(metavar="POLICY", help="What the policy is built on: a library name or a file.")
    ] = "base",
    name: Annotated[str, typer.Option(metavar="NAME", help="The policy's name.")] = "learned",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the policy there.")] = None,
    resolve: Annotated[
        bool, typer.Option("--resolve", help="Look recorded names up (DNS), for rules by name.")
    ] = False,
    with_incidents: Annotated[
        bool, typer.Option("--with-incidents", help="Also learn from rollouts with counted incidents.")
    ] = False,
    run_id: RunOption = None,
    server: ServerOption = None,
    json_output: JsonOption = False,
) -> None:
    """Turn what rollouts did in phase agent into a policy that allows that, and little more.

    Names that differ by chance or version become patterns on the evidence of two or more; each is shown, and
    so is what was left out. A recording with losses in a class that is needed is refused.

    With --live a rollout is followed while it runs. What was not loss by then may be known as such at its end
    alone, and so are its incidents: a policy that Ctrl-C had written says that it is of a part.

    \b
    Examples:
      guard policy learn --from r1 --from r2 --extends swe-task --out tight.yaml
      guard policy learn --live r3 --out tight.yaml
    """
    import sys

    from invigilator.guard.cli.output import plain, print_json

    if not rollouts and live is None:
        raise typer.BadParameter("name a rollout with --from, or --live")
    with client(server) as record:
        facts = [_facts(record, one, run_id, with_incidents=with_incidents)[1] for one in rollouts or ()]
        if live is not None:
            facts.append(_followed(record, live, run_id, with_incidents=with_incidents))
    found = _learned(facts, extends, name, out, resolve=resolve)
    if out is not None:
        out.write_text(found.text, encoding="utf-8")
    if json_output:
        print_json(
            {
                "policy": found.text,
                "generalised": [
                    {"pattern": one.text, "why": one.why, "from": [*map(plain, one.instances)]}
                    for one in found.patterns
                    if one.instances
                ],
                "left_out": {
                    why: {plain(k): n for k, n in what.items()} for why, what in found.left_out.items()
                },
            }
        )
        return
    for one in found.patterns:
        if one.instances:
            names = ", ".join(map(plain, one.instances))
            print(
                f"generalised: {one.text} ({one.why}: {len(one.instances)} distinct: {names})",
                file=sys.stderr,
            )
    for reason, what in sorted(found.left_out.items()):
        for path, count in sorted(what.items()):
            print(f"left out: {plain(path)}, {count} times ({reason})", file=sys.stderr)
    if out is None:
        print(found.text, end="")
        return
    several = sum(bool(one.instances) for one in found.patterns)
    left = sum(len(what) for what in found.left_out.values())
    print(f"{plain(out)}: {len(found.patterns)} rules for files, {several} of them patterns; {left} left out")


def _facts(
    record: Invigilator, rollout: str, run_id: str | None, *, with_incidents: bool
) -> tuple[Report, Recording]:
    from invigilator.guard.learning import recording

    report = record.rollout(rollout, run_id)
    _refuse_incidents(report, with_incidents=with_incidents)
    return report, _with_names(record, report, recording(record, report))


def _followed(record: Invigilator, rollout: str, run_id: str | None, *, with_incidents: bool) -> Recording:
    import threading

    from invigilator.guard.following import follow, until_interrupted

    enough = threading.Event()
    with until_interrupted(enough):
        report, facts = follow(record, rollout, run_id, enough)
    if report is None:
        return facts
    _refuse_incidents(report, with_incidents=with_incidents)
    return _with_names(record, report, facts)


def _refuse_incidents(report: Report, *, with_incidents: bool) -> None:
    from invigilator.guard.errors import GuardError

    counted = sorted({one.kind for one in report.incidents if one.counted})
    if counted and not with_incidents:
        fix = "learn from an honest rollout, or say --with-incidents"
        raise GuardError(
            f"it has incidents that count: {', '.join(counted)}", where=report.rollout_id, fix=fix
        )


def _with_names(record: Invigilator, report: Report, facts: Recording) -> Recording:
    """The names of the policy's own rules too: their addresses were pinned, and nobody asked for them."""
    from invigilator.profiles.network import network_of
    from invigilator.profiles.policy import Policy

    policy = Policy.model_validate(record.policy(report))
    for rule in network_of(policy, "agent").egress:
        facts.names[rule.target.lower().encode()] += 1
    return facts


def _learned(
    facts: Sequence[Recording], extends: str, name: str, out: Path | None, *, resolve: bool
) -> Learned:
    from invigilator.guard.cli.policy import installed_detectors
    from invigilator.guard.errors import GuardError
    from invigilator.profiles import library
    from invigilator.profiles.check import check_loaded
    from invigilator.profiles.learning import learn
    from invigilator.profiles.learning.learn import TooMuchError

    base = library.load(extends)
    folder = (out.parent if out is not None else Path()).absolute()
    said = extends if extends in library.list_names() else _relative(Path(extends), folder)
    try:
        found = learn(facts, base, name=name, extends=said, hosts=_hosts(facts) if resolve else None)
    except TooMuchError as error:
        raise GuardError(str(error), where="--from") from error
    loaded = library.load_text(found.text, str(out or f"{name}.yaml"), folder)
    errors = [one for one in check_loaded(loaded, installed_detectors()) if one.severity == "error"]
    if errors:
        raise GuardError("; ".join(map(str, errors)), where=name, fix="choose another --extends")
    return found


def _relative(file: Path, folder: Path) -> str:
    return f"./{os.path.relpath(file.absolute(), folder)}"


def _hosts(facts: Sequence[Recording]) -> dict[str, tuple[str, ...]]:
    """Addresses, as the node's name servers have them now, of the names that were asked for."""
    from invigilator.profiles.names import is_wildcard
    from invigilator.profiles.network import target_network
    from invigilator.sandbox.resolver.upstream import lookup

    found = {}
    for raw in sorted({name for recording in facts for name in recording.names}):
        try:
            name = raw.decode("ascii")
            if target_network(name) is None and not is_wildcard(name):
                found[name] = tuple(lookup(name))
        except (ValueError, OSError):
            continue
    return found


def prove_policy(
    policy: PolicyArgument,
    rollouts: FromOption,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- CMD]", help="The command, where the record does not hold it whole."),
    ] = None,
    workspace: Annotated[
        Path | None, typer.Option("--workspace", "-w", metavar="DIR", help="As it was when recorded.")
    ] = None,
    root: Annotated[Path | None, typer.Option(metavar="DIR", help="Root file system, as recorded.")] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="TIER", help="Prove the rest where `apparmor` is not in force."),
    ] = None,
    run_id: RunOption = None,
    server: ServerOption = None,
    home: HomeOption = None,
    json_output: JsonOption = False,
) -> None:
    """Run what was recorded again under a policy: nothing of it is refused, and attacks are.

    Exit status: 0 proven; 1 not.

    \b
    Example:
      guard policy prove tight.yaml --from r1 -w ./repo
    """
    from dataclasses import asdict

    from invigilator.guard.cli.output import print_json, print_table
    from invigilator.guard.node import require_root
    from invigilator.guard.proving import Case, prove
    from invigilator.profiles import library

    require_root("guard policy prove")
    rules = library.load(policy)
    with client(server) as record:
        cases = [
            Case(*_facts(record, one, run_id, with_incidents=True), command=tuple(command or ()))
            for one in rollouts
        ]
        rows = prove(
            record, rules, cases, workspace=workspace, root=root, home=home, without=frozenset(without or ())
        )
    proven = all(row.state != "failed" for row in rows)
    if json_output:
        print_json({"proven": proven, "rows": [asdict(row) for row in rows]})
    else:
        print_table(("state", "what", "tier", "found"), [(r.state, r.what, r.tier, r.found) for r in rows])
        counts = {
            state: sum(row.state == state for row in rows) for state in ("proven", "failed", "not shown")
        }
        print(", ".join(f"{count} {state}" for state, count in counts.items()))
    if not proven:
        raise typer.Exit(1)
