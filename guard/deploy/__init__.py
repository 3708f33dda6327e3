"""What runs the guard beyond a shell: units of systemd, a compose file. `guard units` fills them in."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from invigilator.guard.errors import GuardError
from invigilator.guard.home import Home

FOLDER = Path(__file__).parent
UNITS = ("invigilator-agent.service", "invigilator-serve.service")


def units(home: Home, python: str = sys.executable) -> dict[str, str]:
    """The units by file name, for this installation's Python and a state folder."""
    guard = f"{quoted(python)} -m invigilator.guard.cli.main"
    filled = {"@GUARD@": guard, "@HOME@": quoted(str(home.root))}
    return {name: replaced((FOLDER / name).read_text(), filled) for name in UNITS}


def write_units(folder: Path, home: Home) -> list[Path]:
    """Write the units into a folder such as /etc/systemd/system; `GuardError` where that cannot be."""
    written = []
    for name, text in units(home).items():
        target = folder / name
        try:
            target.write_text(text)
        except OSError as error:
            raise GuardError(
                f"the unit cannot be written: {error.strerror}", where=str(target), fix="use sudo, or --to"
            ) from None
        written.append(target)
    return written


def quoted(path: str) -> str:
    """A path as a unit's line takes it: one word, `%` and `$` for themselves (systemd.unit(5)).

    `GuardError` for what no line can hold."""
    if not path.isprintable() or any(sign in path for sign in "\"'\\"):
        raise GuardError(
            "a unit cannot name this path", where=repr(path), fix="choose one of plain characters"
        )
    doubled = path.replace("%", "%%").replace("$", "$$")
    return f'"{doubled}"' if " " in doubled else doubled


def replaced(text: str, by: Mapping[str, str]) -> str:
    """The text with each placeholder filled in."""
    for placeholder, value in by.items():
        text = text.replace(placeholder, value)
    return text
