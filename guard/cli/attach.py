"""`guard attach`: watch what others run in containers, and judge it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from invigilator.guard.cli.daemons import HomeOption
from invigilator.guard.cli.joining import PhaseWord
from invigilator.guard.cli.options import AttemptOption, RunIdOption
from invigilator.guard.cli.output import plain
from invigilator.guard.errors import GuardError

if TYPE_CHECKING:
    from invigilator.guard.cli.reportfile import ReportFile
    from invigilator.incidents.records import Report


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "attach",
        epilog="Exit status: 0 once what was watched is judged, whatever the verdict; else as `guard` says.",
    )(attach)


def attach(
    cgroup: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Watch this cgroup: as /proc/PID/cgroup has it, or in full."),
    ] = None,
    container: Annotated[
        str | None, typer.Option(metavar="NAME", help="Watch this container of Docker's, by name or id.")
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            "-l",
            metavar="K=V",
            help="A label of the rollout. Without --cgroup and --container: of the containers to watch, each "
            "a rollout with that label. Repeatable.",
        ),
    ] = None,
    policy: Annotated[
        str, typer.Option("--policy", "-p", metavar="POLICY", help="A policy's name or file, to judge by.")
    ] = "base",
    rollout: Annotated[
        str | None,
        typer.Option(
            "--rollout",
            "--rollout-id",
            metavar="ID",
            help="The rollout's id.",
            show_default="generated; with --label the container's label invigilator.rollout, else its id",
        ),
    ] = None,
    run_id: RunIdOption = None,
    attempt: AttemptOption = 1,
    phase: Annotated[
        PhaseWord | None,
        typer.Option(
            metavar="PHASE",
            help="The phase from the beginning; `guard phase` declares the next.",
            show_default="unknown",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the verdict here, as JSON; with --label into this folder, ID.json."
        ),
    ] = None,
    cgroup_parent: Annotated[
        str, typer.Option(metavar="PATH", help="Docker's --cgroup-parent, where its daemon has one.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Verdicts on stdout, each a line of JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No summary.")] = False,
    home: HomeOption = None,
) -> None:
    """Watch what others run: a cgroup, a container, or all containers with a label.

    Nothing is enforced and nothing is changed; what happens is recorded and judged by the policy. A container
    that was created and not started yet is watched from its first instruction; of one that runs, the report
    names who was there before, and its evidence is incomplete. The phase is unknown until it is declared:
    what depends on it is then not counted. The watch ends when nobody is left in the cgroup, or at Ctrl-C.

    Only cgroups of containers may be watched: the usual parents of Docker, containerd, Podman and Kubernetes,
    or those that the file `attachable` of the state folder lists, one a line. Needs root.

    \b
    Examples:
      docker create --name task -l checkpoint=120 IMAGE CMD
      guard attach --container task -p swe-task --rollout r1 --phase agent &
      docker start task
      guard attach --label checkpoint=120 -p swe-task --report verdicts/
      guard attach --cgroup /kubepods/burstable/podX/Y -p swe-task --rollout r2
    """
    import asyncio

    from invigilator.guard.cli.options import pairs
    from invigilator.guard.home import Home
    from invigilator.guard.node import require_root
    from invigilator.guard.watching import Watching
    from invigilator.profiles import library

    require_root("guard attach")
    if cgroup is not None and container is not None:
        raise GuardError("a cgroup and a container are named", where="--cgroup", fix="give one of them")
    if cgroup is None and container is None and not label:
        fix = "give --cgroup PATH, --container NAME or --label K=V"
        raise GuardError("nothing is named to watch", fix=fix)
    watching = Watching(
        home=Home.locate(home),
        policy=library.load(policy),
        rollout=rollout,
        run_id=run_id,
        attempt=attempt,
        labels=pairs(label, "--label"),
        phase=phase.value if phase else None,
        cgroup_parent=cgroup_parent,
        say=_say(quiet=quiet),
        told=lambda one, notice: None,
    )
    if cgroup is None and container is None:
        folder = _folder(report)
        watching.told = lambda one, notice: _tell(
            one, _file_in(folder, one), notice, as_json=as_json, quiet=quiet
        )
        asyncio.run(watching.all_labelled())
        return
    target = _target(report)
    watching.told = lambda one, notice: _tell(one, target, notice, as_json=as_json, quiet=quiet)
    asyncio.run(watching.cgroup(cgroup) if cgroup is not None else watching.container(container or ""))


def _say(*, quiet: bool) -> Callable[[str], None]:
    def say(text: str) -> None:
        if not quiet:
            print(f"guard: {plain(text)}", file=sys.stderr, flush=True)

    return say


def _tell(
    report: Report, target: ReportFile | None, notice: str | None, *, as_json: bool, quiet: bool
) -> None:
    from invigilator.guard import summary

    if target is not None:
        target.write(report.model_dump_json(indent=2))
    if as_json:
        print(report.model_dump_json(), flush=True)
    elif not quiet:
        summary.show(report, target.path if target else None, notice)


def _target(report: Path | None) -> ReportFile | None:
    from invigilator.guard.cli.reportfile import open_report

    return None if report is None else open_report(report, [])


def _folder(report: Path | None) -> Path | None:
    if report is None:
        return None
    if report.exists() and not report.is_dir():
        raise GuardError(
            "with --label there may be many verdicts", where=plain(report), fix="give --report a folder"
        )
    report.mkdir(parents=True, exist_ok=True)
    return report


def _file_in(folder: Path | None, report: Report) -> ReportFile | None:
    return _target(folder / f"{report.sandbox_id}.json") if folder is not None else None
