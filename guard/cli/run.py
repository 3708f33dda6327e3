"""`guard run`: one guarded rollout of a command, from the shell."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from invigilator.guard.cli.daemons import HomeOption
from invigilator.guard.cli.options import AttemptOption, RunIdOption
from invigilator.guard.cli.output import plain
from invigilator.guard.errors import GuardError

if TYPE_CHECKING:
    from invigilator.guard.cli.reportfile import ReportFile
    from invigilator.guard.foreground import Plan
    from invigilator.guard.order import SandboxOrder
    from invigilator.profiles.policy import Policy

FAILED_CODE = 125
INTERRUPTED_CODE = 130
SHARED_FOLDERS = (Path("/usr"),)
"""Folders of the host that a sandbox's default root shows."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "run",
        context_settings={"allow_interspersed_args": False},
        epilog="Exit status: the command's own, also where its output could not be written, which is said; "
        "124 timed out; 125 guard failed; 126, 127 as a shell; 130 if Ctrl-C ended setup or verify.",
    )(run)


def run(
    command: Annotated[list[str], typer.Argument(metavar="CMD", help="The command.", show_default=False)],
    policy: Annotated[
        str, typer.Option("--policy", "-p", metavar="POLICY", help="A policy's name or file.")
    ] = "base",
    workspace: Annotated[
        Path | None,
        typer.Option(
            "--workspace", "-w", metavar="DIR", help="Folder to work on; changes come back at the end."
        ),
    ] = None,
    rollout: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Its id; sandboxes of one id and attempt are judged together.",
            show_default="generated",
        ),
    ] = None,
    run_id: RunIdOption = None,
    attempt: AttemptOption = 1,
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", metavar="K=V", help="Repeatable.")
    ] = None,
    setup: Annotated[
        str | None, typer.Option(metavar="CMD", help="Shell command before: phase setup.")
    ] = None,
    verify: Annotated[
        str | None, typer.Option(metavar="CMD", help="Shell command after: phase verify.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="S", help="End the command after S seconds.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the verdict here, as JSON.")
    ] = None,
    backend: Annotated[
        str, typer.Option(metavar="NAME", help="Kind of sandbox: process or container.")
    ] = "process",
    root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Root file system, instead of /usr's.")
    ] = None,
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="Image of Docker's, for --backend container.")
    ] = None,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", metavar="K=V", help="Repeatable.")] = None,
    no_network: Annotated[
        bool, typer.Option("--no-network", help="Nothing leaves, whatever the policy.")
    ] = False,
    no_copy_back: Annotated[
        bool, typer.Option("--no-copy-back", help="Leave the workspace as it was.")
    ] = False,
    tty: Annotated[
        bool | None,
        typer.Option("--tty/--no-tty", help="Give a terminal.", show_default="as stdin and stdout"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The verdict on stderr as one line of JSON.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No summary.")] = False,
    home: HomeOption = None,
) -> None:
    """Run one guarded rollout of a command and judge it.

    The command sees this machine's /usr (or --root) and the workspace, in /workspace; nothing else of it.

    \b
    Example:
      guard run -p swe-task -w ./repo --report verdict.json -- \\
        bash -c 'python3 solve.py && make check'
    """
    from invigilator.guard.cli.failures import explain
    from invigilator.guard.cli.options import pairs, seconds
    from invigilator.guard.foreground import Plan
    from invigilator.guard.node import require_root

    try:
        require_root("guard run")
        environment = pairs(env, "--env")
        order = _order(
            policy=policy,
            workspace=workspace,
            rollout=rollout,
            run_id=run_id,
            attempt=attempt,
            labels=pairs(label, "--label"),
            backend=backend,
            root=root,
            image=image,
            no_network=no_network,
            copy_back=not no_copy_back,
        )
        target = _report_target(report, order) if report is not None else None
        on_terminal = os.isatty(0) and os.isatty(1) if tty is None else tty
        plan = Plan(command, setup, verify, seconds(timeout, "--timeout"), on_terminal, environment)
        code = _run(order, plan, home, target, as_json=as_json, quiet=quiet)
    except KeyboardInterrupt:
        code = INTERRUPTED_CODE
    except Exception as error:
        explain(error, as_json=as_json)
        code = FAILED_CODE
    raise typer.Exit(code)


def _run(
    order: SandboxOrder,
    plan: Plan,
    home: Path | None,
    target: ReportFile | None,
    *,
    as_json: bool,
    quiet: bool,
) -> int:
    import asyncio

    from invigilator.guard import summary
    from invigilator.guard.failed import failed_report
    from invigilator.guard.foreground import Foreground
    from invigilator.guard.home import Home
    from invigilator.guard.sdk import Sandbox

    try:
        outcome = asyncio.run(Foreground(Sandbox(order, Home.locate(home)), plan).run())
    except GuardError as error:
        if target is not None:
            target.write(failed_report(order, str(error)).model_dump_json(indent=2))
        raise
    if target is not None:
        target.write(outcome.report.model_dump_json(indent=2))
    if outcome.lost_output is not None:
        message = f"the command's output could not be written ({outcome.lost_output}): some is lost"
        print(json.dumps({"message": message}) if as_json else f"guard: {message}", file=sys.stderr)
    if as_json:
        print(outcome.report.model_dump_json(), file=sys.stderr)
    elif not quiet:
        summary.show(outcome.report, target.path if target else None, outcome.notice)
    return outcome.code


def _order(
    *,
    policy: str,
    workspace: Path | None,
    rollout: str | None,
    run_id: str | None,
    attempt: int,
    labels: dict[str, str],
    backend: str,
    root: Path | None,
    image: str | None,
    no_network: bool,
    copy_back: bool,
) -> SandboxOrder:
    from pydantic import ValidationError

    from invigilator.guard.folders import identity
    from invigilator.guard.order import SandboxOrder, new_rollout_id, owner_of
    from invigilator.profiles import library

    loaded = library.load(policy)
    folder = _folder(workspace, "workspace") if workspace is not None else None
    owner_uid, owner_gid = owner_of(folder)
    try:
        return SandboxOrder(
            policy=_without_network(loaded) if no_network else loaded,
            workspace=str(folder) if folder is not None else None,
            root=str(_folder(root, "root")) if root is not None else None,
            image=image,
            workspace_identity=identity(folder),
            root_identity=identity(root),
            rollout_id=new_rollout_id() if rollout is None else rollout,
            run_id=run_id,
            attempt=attempt,
            labels=labels,
            backend=backend,
            owner_uid=owner_uid,
            owner_gid=owner_gid,
            copy_back=copy_back,
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])).removesuffix("_id")
        raise GuardError(f"{first['msg']}", where=f"--{where.replace('_', '-')}") from None


def _without_network(policy: Policy) -> Policy:
    nothing = {"default_action": "deny", "egress": []}
    network = policy.network.model_copy(update=nothing)
    phases = {}
    for name, rules in policy.phases.items():
        own = rules.network.model_copy(update=nothing) if rules.network else network
        phases[name] = rules.model_copy(update={"network": None if own == network else own})
    return policy.model_copy(update={"network": network, "phases": phases})


def _folder(path: Path, what: str) -> Path:
    if not path.exists():
        raise GuardError(
            f"the {what} does not exist", where=plain(path), fix="make the folder, or name another"
        )
    if not path.is_dir():
        raise GuardError(f"the {what} is not a folder", where=plain(path), fix=f"give --{what} a folder")
    return path.resolve()


def _report_target(report: Path, order: SandboxOrder) -> ReportFile:
    from invigilator.guard.cli.reportfile import open_report

    seen = [Path(folder) for folder in (order.workspace, order.root) if folder]
    return open_report(report, [*seen, *SHARED_FOLDERS])
