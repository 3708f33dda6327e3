"""`guard version` and `guard completion`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Shell(StrEnum):
    """Shells that completion is written for."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("version")(version)
    app.command("completion")(completion)


def version(json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the version of Invigilator."""
    from invigilator.guard.cli.output import print_json
    from invigilator.guard.release import version as release

    if json_output:
        print_json({"version": release()})
    else:
        print(f"invigilator {release()}")


def completion(shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish.")]) -> None:
    """Print the script that completes commands and options in a shell.

    \b
    Examples:
      guard completion bash > /etc/bash_completion.d/guard
      echo 'source <(guard completion zsh)' >> ~/.zshrc
      guard completion fish > ~/.config/fish/completions/guard.fish
    """
    from typer._completion_shared import get_completion_script

    print(get_completion_script(prog_name="guard", complete_var="_GUARD_COMPLETE", shell=shell.value))
