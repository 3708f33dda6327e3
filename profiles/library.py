"""Finding and loading policies: by name from the library, or from a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from invigilator.profiles import extend, rawtext, rules
from invigilator.profiles.build import to_policy
from invigilator.profiles.conflicts import Finding
from invigilator.profiles.errors import Place, PolicyError, Problem
from invigilator.profiles.form import PolicyForm
from invigilator.profiles.kinds import WEIGHTS_FILE, default_weights
from invigilator.profiles.policy import Policy
from invigilator.profiles.source import Loc, Node, Scalar, Table, child, locate, parse, read_file
from invigilator.profiles.validate import suggest, validate

FOLDER = WEIGHTS_FILE.parent
EXTENDS_MAX = 8
"""Longest chain of `extends`."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A policy with where each part of it was written.

    `tree` is the merged YAML; `files` the files it was made of, the policy's own first; `warnings` what is
    legal but likely a mistake.
    """

    policy: Policy
    tree: Table
    files: tuple[str, ...]
    warnings: tuple[Problem, ...]

    def place(self, where: Loc) -> Place:
        """Where a part (keys and indices from the root of the YAML) was written, or the nearest around it.

        A part that no file wrote is the language's default: a Place without a line.
        """
        if not where or where[0] not in self.tree.items:
            return Place("default")
        return locate(self.tree, where)

    def has(self, where: Loc) -> bool:
        """Whether some file wrote this part."""
        node: Node = self.tree
        for step in where:
            inside = child(node, step)
            if inside is None:
                return False
            node = inside
        return True


def list_names() -> list[str]:
    """The names of the library's policies, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml") if path.name != WEIGHTS_FILE.name)


def load(name_or_path: str) -> Policy:
    """A policy by its name in the library (`swe-task`) or by the path of a YAML file (`./mine.yaml`).

    `extends` is resolved and defaults are filled in. Raises PolicyError with every error's file, line and
    column, and what to write instead.
    """
    return load_with_places(name_or_path).policy


def load_with_places(name_or_path: str) -> Loaded:
    """As `load`, with the places and warnings that explain, diff and check speak of."""
    return _sound(*examine(name_or_path))


def examine(name_or_path: str) -> tuple[Loaded, list[Problem]]:
    """A policy whose every part can be read, and the errors of what its parts say together.

    Raises PolicyError where a part cannot be read.
    """
    path = _find(name_or_path, Path(), Place(name_or_path))
    chain = _read_chain(path)
    return _assemble([table for _, table in chain], tuple(_shown(file) for file, _ in chain))


def load_text(text: str, file: str = "policy.yaml", folder: Path | None = None) -> Loaded:
    """A policy from its text; `extends` is looked for in the library, and in `folder` for a file."""
    table = _checked(text, file)
    chain = [(Path(file), table)]
    parent = _parent(table, folder or Path())
    if parent is not None:
        chain += _read_chain(parent, seen=(Path(file),))
    return _sound(*_assemble([table for _, table in chain], tuple(_shown(path) for path, _ in chain)))


def read(name_or_path: str) -> str:
    """The text of a policy's own file, for people to look at."""
    return read_file(_find(name_or_path, Path(), Place(name_or_path)))


def _sound(loaded: Loaded, errors: list[Problem]) -> Loaded:
    if errors:
        raise PolicyError(errors)
    return loaded


def _assemble(tables: list[Table], files: tuple[str, ...]) -> tuple[Loaded, list[Problem]]:
    merged: Node = tables[-1]
    for table in reversed(tables[:-1]):
        merged = extend.merge(merged, table)
    merged = extend.without_rest(extend.fill_phases(_as_table(merged)))
    assert isinstance(merged, Table)
    policy = to_policy(validate(merged, PolicyForm), default_weights())
    loaded = Loaded(policy, merged, files, ())
    problems = [
        Problem(loaded.place(found.where), _with_other(found, loaded), found.fix, found.severity)
        for found in rules.findings(policy)
    ]
    errors = [problem for problem in problems if problem.severity == "error"]
    warnings = tuple(problem for problem in problems if problem.severity != "error")
    return Loaded(policy, merged, files, warnings), errors


def _with_other(found: Finding, loaded: Loaded) -> str:
    """The message, with the line of what the finding contradicts."""
    return f"{found.message} ({loaded.place(found.other)})" if found.other else found.message


def _read_chain(path: Path, seen: tuple[Path, ...] = ()) -> list[tuple[Path, Table]]:
    """(file, tree) of a policy and of all that it extends, the policy itself first."""
    chain: list[tuple[Path, Table]] = []
    following: Path | None = path
    while following is not None:
        table = _checked(read_file(following), _shown(following))
        chain.append((following, table))
        parent = _parent(table, following.parent)
        names = [*seen, *(file for file, _ in chain)]
        if parent is not None and any(_same(parent, file) for file in names):
            loop = " → ".join(file.name for file in [*names, parent])
            raise PolicyError.at(
                locate(table, ["extends"]), f"`extends` goes in a circle: {loop}", "remove one"
            )
        if len(chain) > EXTENDS_MAX:
            place = locate(table, ["extends"])
            raise PolicyError.at(
                place, f"more than {EXTENDS_MAX} files extend each other", "merge some of them"
            )
        following = parent
    return chain


def _checked(text: str, file: str) -> Table:
    table = rawtext.expand(extend.expand_classes(parse(text, file)))
    validate(_as_table(extend.drop_rest(table)), PolicyForm)
    return table


def _as_table(node: Node) -> Table:
    assert isinstance(node, Table)
    return node


def _parent(table: Table, folder: Path) -> Path | None:
    name = table.items.get("extends")
    if not isinstance(name, Scalar):
        return None
    return _find(str(name.value), folder, name.place)


def _find(name: str, folder: Path, place: Place) -> Path:
    if not name.strip():
        fix = f"name one of {', '.join(list_names())}, or a file"
        raise PolicyError.at(place if place.line else Place("policy"), "its name is empty", fix)
    if "/" in name or name.endswith((".yaml", ".yml")):
        return folder / name
    if name in list_names():
        return FOLDER / f"{name}.yaml"
    meant = suggest(name, list_names())
    fix = (
        f"write `{meant}`"
        if meant
        else f"use one of {', '.join(list_names())}, or a path such as ./policy.yaml"
    )
    raise PolicyError.at(place, f"the library has no policy `{name}`", fix)


def _shown(path: Path) -> str:
    return f"library/{path.name}" if path.parent == FOLDER else str(path)


def _same(one: Path, two: Path) -> bool:
    try:
        return one.samefile(two)
    except (OSError, ValueError):
        return one == two
