"""`guard policy compile` and `import`: a policy's artefacts, and a policy of an existing one."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from invigilator.guard.cli.policy import JsonOption, Phase, PolicyArgument

if TYPE_CHECKING:
    from invigilator.profiles.policy import PhaseName


class Tier(StrEnum):
    """What artefacts are made for."""

    apparmor = "apparmor"
    seccomp = "seccomp"
    network = "network"
    cgroup = "cgroup"


def register(group: typer.Typer) -> None:
    """Add the commands."""
    group.command("compile")(compile_policy)
    group.command("import")(import_policy)


def compile_policy(
    policy: PolicyArgument,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write the artefacts into.")
    ] = None,
    phase: Annotated[Phase | None, typer.Option(help="Print this phase's artefacts.")] = None,
    tier: Annotated[
        list[Tier] | None,
        typer.Option(metavar="TIER", help="Print apparmor's, seccomp's, network's or cgroup's; repeatable."),
    ] = None,
    resolve: Annotated[bool, typer.Option("--resolve", help="Turn names into addresses (DNS).")] = False,
    json_output: JsonOption = False,
) -> None:
    """Make a policy's artefacts: AppArmor profiles, seccomp filters, network rules, limits, path classes.

    With --phase or --tier they are printed, to be read; with --out they are written, also as what `docker run
    --security-opt seccomp=seccomp-agent.docker.json` takes; else they are listed.

    \b
    Examples:
      guard policy compile swe-task --phase agent --tier apparmor
      guard policy compile swe-task --out build/swe-task
    """
    from invigilator.guard.artefacts import TIERS, compile_all, readable
    from invigilator.guard.cli.output import print_json, print_table
    from invigilator.profiles import library

    loaded = library.load_with_places(policy)
    if phase is not None or tier:
        wanted = [one.value for one in tier or ()]
        chosen: PhaseName = (phase or Phase.agent).value
        texts = {
            name: readable(loaded, chosen, name, resolve=resolve)
            for name in TIERS
            if not wanted or name in wanted
        }
        if json_output:
            print_json(texts)
            return
        for title, text in texts.items():
            print(f"# --- {title}, phase {chosen}\n{text}" if len(texts) > 1 else text, end="")
        return
    found = compile_all(loaded, resolve=resolve)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for name, content in found.items():
            (out / name).write_bytes(content)
    facts = [{"artefact": name, "bytes": len(content)} for name, content in found.items()]
    if json_output:
        print_json(facts)
        return
    print_table(("artefact", "bytes"), [(fact["artefact"], fact["bytes"]) for fact in facts])
    if out is None:
        print("nothing was written; name a folder with --out, or a tier with --tier")


def import_policy(
    file: Annotated[Path, typer.Argument(metavar="PROFILE", help="A file of AppArmor profiles.")],
    profile: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which profile, where the file has several.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The policy's name.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the policy there.")] = None,
    base: Annotated[Path, typer.Option(metavar="DIR", help="Where `include <...>` looks.")] = Path(
        "/etc/apparmor.d"
    ),
    json_output: JsonOption = False,
) -> None:
    """Turn an existing AppArmor profile into a policy.

    What the policy language can say is said in it; the rest goes to `apparmor.raw`. What became of each rule
    is told on standard error.

    \b
    Example:
      guard policy import /etc/apparmor.d/usr.bin.tool --out tool.yaml
    """
    import sys

    from invigilator.guard.cli.output import plain, print_json
    from invigilator.profiles.apparmor.importing import import_profile

    found = import_profile(file, name=name, profile=profile, base=base)
    if out is not None:
        out.write_text(found.text, encoding="utf-8")
    if json_output:
        print_json({"policy": found.text, "rules": [asdict(note) for note in found.notes]})
        return
    for note in found.notes:
        print(plain(note), file=sys.stderr)
    counts = {
        fate: sum(note.fate == fate for note in found.notes)
        for fate in ("policy", "given", "raw", "left out")
    }
    print(", ".join(f"{count} {fate}" for fate, count in counts.items()), file=sys.stderr)
    if out is None:
        print(found.text, end="")
