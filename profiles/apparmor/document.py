"""The library's policies as profiles, kept as documents, so that a change of policy or compiler is seen.

`python -m invigilator.profiles.apparmor.document docs/profiles` writes them anew.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

from invigilator.profiles import library
from invigilator.profiles.apparmor.abi import OLD
from invigilator.profiles.apparmor.profile import compile
from invigilator.profiles.policy import PhaseName


def documents() -> dict[str, str]:
    """File name → profile, of the ABI that every kernel has; phases with the same profile share a file."""
    found: dict[str, str] = {}
    for name in library.list_names():
        texts: dict[str, list[str]] = {}
        for phase in get_args(PhaseName):
            texts.setdefault(compile(library.load(name), phase, abi=OLD).text, []).append(phase)
        found |= {f"{name}.{'-'.join(phases)}.apparmor": text for text, phases in texts.items()}
    return found


def main(folder: Path) -> None:
    """Write the documents, and remove those that are no more."""
    folder.mkdir(parents=True, exist_ok=True)
    made = documents()
    for path in folder.glob("*.apparmor"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (folder / name).write_text(text, encoding="ascii")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
