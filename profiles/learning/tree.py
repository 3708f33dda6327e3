"""Used paths as a tree of folders, in which names that are alike become one pattern."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from invigilator.profiles.apparmor import globs
from invigilator.profiles.apparmor.names import literal
from invigilator.profiles.learning.facts import Use
from invigilator.profiles.learning.shapes import groups
from invigilator.profiles.policy import FileAccess

FOLDER_READS_MIN = 8
"""So many files read in one folder stand for all files in it."""
FOLDER_DEPTH_MIN = 3
OWN_NAMES = frozenset({b"etc", b"proc", b"sys", b"dev", b"root", b"home", b"run", b"tmp", b"var"})
"""First folders in which every name may mean something else: what was read there stands for itself."""


@dataclass
class Node:
    """A name in a folder: what was done with it as a file, and as a folder."""

    file: set[FileAccess] = field(default_factory=set)
    folder: set[FileAccess] = field(default_factory=set)
    created: bool = False
    children: dict[bytes, Node] = field(default_factory=dict)

    def merge(self, other: Node) -> None:
        """Take over all that was done with another."""
        self.file |= other.file
        self.folder |= other.folder
        self.created |= other.created
        for name, child in other.children.items():
            self.children.setdefault(name, Node()).merge(child)


@dataclass(frozen=True, slots=True)
class Pattern:
    """One or several paths and what was done with them. `path`: the one path, None for several.

    `text`: in AppArmor's pattern language, a folder's with `/` at its end. `instances`: what it was made of.
    """

    text: str
    path: bytes | None
    access: frozenset[FileAccess]
    folder: bool
    why: str = ""
    instances: tuple[bytes, ...] = ()


def patterns(uses: Iterable[Use], kept_apart: Collection[bytes]) -> list[Pattern]:
    """What was used, generalised where that is sound.

    No pattern stands for one of `kept_apart` (programs, protected folders), nor for a folder above one. Every
    name must be one that a pattern can hold.
    """
    root = Node()
    for use in sorted(uses):
        node = root
        for name in filter(None, use.path.split(b"/")):
            node = node.children.setdefault(name, Node())
        (node.folder if use.folder else node.file).add(use.access)
        node.created |= use.created
    guarded = {above for path in kept_apart for above in _itself_and_above(path)}
    return list(_Walk(frozenset(guarded)).below(root, "", b"", 0, "", ()))


@dataclass(frozen=True, slots=True)
class _Walk:
    guarded: frozenset[bytes]

    def below(
        self, node: Node, text: str, path: bytes | None, depth: int, why: str, instances: tuple[bytes, ...]
    ) -> Iterator[Pattern]:
        children = dict(node.children)
        if path is not None and depth + 1 >= FOLDER_DEPTH_MIN:
            read = self._read_whole(children, text, path)
            if read is not None:
                yield read
                for name in read.instances:
                    del children[name]
        found = groups({name: child.created for name, child in children.items()}) if depth else []
        for group in found:
            pattern = f"{text}/{group.pattern}"
            if self._forbidden(pattern):
                continue
            merged = Node()
            for name in group.names:
                merged.merge(children.pop(name))
            evidence = instances or tuple(_under(path, name) for name in group.names)
            yield from self._one(merged, pattern, None, depth + 1, why or group.why, evidence)
        for name, child in sorted(children.items()):
            exact = None if path is None else _under(path, name)
            yield from self._one(child, f"{text}/{literal(name)}", exact, depth + 1, why, instances)

    def _one(
        self, node: Node, text: str, path: bytes | None, depth: int, why: str, instances: tuple[bytes, ...]
    ) -> Iterator[Pattern]:
        if node.file:
            yield Pattern(text, path, frozenset(node.file), False, why, instances)
        if node.folder:
            yield Pattern(f"{text}/", path, frozenset(node.folder), True, why, instances)
        yield from self.below(node, text, path, depth, why, instances)

    def _read_whole(self, children: dict[bytes, Node], text: str, path: bytes) -> Pattern | None:
        """The pattern of a folder's files where so many were read, and no more than read, that it is one."""
        read = tuple(
            name
            for name, child in sorted(children.items())
            if child.file == {"read"} and not (child.folder or child.children or child.created)
        )
        own = path.split(b"/")[1] in OWN_NAMES
        if len(read) < FOLDER_READS_MIN or own or self._forbidden(f"{text}/*"):
            return None
        return Pattern(
            f"{text}/*", None, frozenset({"read"}), False, "many files of one folder were read", read
        )

    def _forbidden(self, pattern: str) -> bool:
        return any(globs.matches(pattern, path) for path in self.guarded)


def _under(path: bytes | None, name: bytes) -> bytes:
    return (path or b"") + b"/" + name


def _itself_and_above(path: bytes) -> Iterator[bytes]:
    while len(path) > 1:
        yield path
        path = path[: path.rfind(b"/")]
