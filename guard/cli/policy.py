"""`guard policy …`: the engineer's questions. Works without root, kernel or server."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from invigilator.guard.cli.help import Ordered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from invigilator.profiles.check import DetectorFacts

PolicyArgument = Annotated[
    str, typer.Argument(metavar="POLICY", help="A name of the library, or the path of a YAML file.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

group = typer.Typer(
    cls=Ordered,
    name="policy",
    help="Check, show, explain, compare, compile, import, learn, prove and apply policies.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Phase(StrEnum):
    """Phases of a rollout."""

    setup = "setup"
    agent = "agent"
    verify = "verify"


class Action(StrEnum):
    """What explain can be asked about."""

    read = "read"
    write = "write"
    append = "append"
    exec = "exec"
    link = "link"
    lock = "lock"
    mmap = "mmap"
    connect = "connect"
    bind = "bind"
    syscall = "syscall"
    capability = "capability"


def register(app: typer.Typer) -> None:
    """Add the group."""
    from invigilator.guard.cli import learn, policy_apply, policy_artefacts

    policy_artefacts.register(group)
    learn.register(group)
    policy_apply.register(group)
    app.add_typer(group)


@group.command("list")
def list_policies(json_output: JsonOption = False) -> None:
    """List the library's policies with the versions of their parts."""
    from invigilator.guard.cli.output import print_json, print_table
    from invigilator.profiles import canonical, library

    found = {name: canonical.policy_versions(library.load(name)) for name in library.list_names()}
    if json_output:
        print_json([{"name": name, **versions._asdict()} for name, versions in found.items()])
        return
    rows = [(name, *(version[:19] for version in versions)) for name, versions in found.items()]
    print_table(("policy", "confinement", "detection", "penalty"), rows)


@group.command()
def check(
    policies: Annotated[list[str], typer.Argument(metavar="POLICY", help="Names or paths of YAML files.")],
    json_output: JsonOption = False,
) -> None:
    """Say everything that is wrong or doubtful in policies: file, line, column, and what to write instead.

    Exit status: 0 when they can be used (warnings are no obstacle), 1 when not.

    \b
    Example:
      guard policy check swe-task ./mine.yaml
    """
    from invigilator.guard.cli.output import plain, print_json
    from invigilator.profiles.check import check as examine

    facts = installed_detectors()
    found = [(policy, problem) for policy in policies for problem in examine(policy, facts)]
    errors = sum(problem.severity == "error" for _, problem in found)
    if json_output:
        print_json([{"policy": policy, **asdict(problem)} for policy, problem in found])
    else:
        for _, problem in found:
            print(f"{problem.severity}: {plain(problem)}")
        numbers = (number(errors, "error"), number(len(found) - errors, "warning"))
        print(f"{', '.join(numbers)} in {number(len(policies), 'policy', 'policies')}")
    if errors:
        raise typer.Exit(1)


def number(count: int, one: str, several: str = "") -> str:
    """A count with its noun."""
    return f"{count} {one if count == 1 else several or one + 's'}"


def installed_detectors() -> Mapping[str, DetectorFacts] | None:
    """What check must know of the detectors of this installation; None without them."""
    from invigilator.profiles.check import DetectorFacts

    try:
        from invigilator.detectors.base import registry
    except ImportError:
        return None
    return {
        name: DetectorFacts(kind=detector.kind, thresholds=frozenset(one.name for one in detector.thresholds))
        for name, detector in registry().items()
    }


@group.command()
def show(
    policy: PolicyArgument,
    source: Annotated[bool, typer.Option("--source", help="The file as it was written.")] = False,
    json_output: JsonOption = False,
) -> None:
    """Print a policy with `extends` resolved and every default filled in, and its versions.

    What is printed is itself a policy, of the same versions. `--json` has bytes and seconds, as the API.

    \b
    Examples:
      guard policy show swe-task
      guard policy show swe-task >mine.yaml
    """
    import yaml

    from invigilator.guard.cli.output import print_json
    from invigilator.profiles import canonical, library
    from invigilator.profiles.written import written

    if source:
        print(library.read(policy), end="")
        return
    loaded = library.load(policy)
    versions = canonical.policy_versions(loaded)
    if json_output:
        print_json({"policy": loaded.model_dump(mode="json"), "versions": versions._asdict()})
        return
    for part, version in versions._asdict().items():
        print(f"# {part}: {version}")
    print(yaml.safe_dump(written(loaded), sort_keys=False, default_flow_style=None, width=100))


@group.command()
def explain(
    policy: PolicyArgument,
    action: Annotated[
        Action,
        typer.Argument(help="read, write, append, exec, link, lock, mmap, connect, syscall, capability."),
    ],
    target: Annotated[
        str, typer.Argument(help="A path, HOST:PORT[/udp], or the name of a call or a capability.")
    ],
    phase: Annotated[Phase, typer.Option(help="In which phase.")] = Phase.agent,
    resolve: Annotated[bool, typer.Option("--resolve", help="Look names of rules up (DNS).")] = False,
    json_output: JsonOption = False,
) -> None:
    """Say what a policy makes of an action, and which rule, in which line, says so.

    \b
    Examples:
      guard policy explain swe-task write /bin/bash --phase agent
      guard policy explain swe-task connect files.example.org:443
      guard policy explain swe-task bind 0.0.0.0:8000
    """
    from invigilator.guard.cli.output import plain, print_json
    from invigilator.guard.errors import GuardError
    from invigilator.profiles import library, seccomp
    from invigilator.profiles.explain import explain as answer
    from invigilator.sandbox.resolver import upstream

    loaded = library.load_with_places(policy)
    resolver = upstream.lookup if resolve else None
    if action is Action.syscall and not seccomp.known(target):
        fix = "check the spelling (man 2 syscalls)"
        raise GuardError("this machine's libseccomp knows no such system call", where=target, fix=fix)
    try:
        found = answer(loaded, phase.value, action.value, target, resolve=resolver)
    except ValueError as error:
        raise GuardError(str(error), where=target) from error
    if json_output:
        print_json(asdict(found))
    else:
        print(plain(found))


@group.command()
def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="Name or path.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Name or path.")],
    json_output: JsonOption = False,
) -> None:
    """Say in words what becomes possible (+), impossible (-) or judged differently (~) from OLD to NEW.

    Exit status, as of diff(1): 0 when they say the same, 1 when they differ.
    """
    from invigilator.guard.cli.output import plain, print_json
    from invigilator.profiles import library
    from invigilator.profiles.diff import diff as compare

    changes = compare(library.load(old), library.load(new))
    if json_output:
        print_json([asdict(change) for change in changes])
    else:
        for change in changes:
            print(plain(change))
    if changes:
        raise typer.Exit(1)


@group.command()
def schema() -> None:
    """Print the JSON Schema of policies, for editors: guard policy schema > policy.schema.json"""
    from invigilator.profiles import schema as policy_schema

    print(policy_schema.text(), end="")
