"""Paths as literal text of AppArmor's pattern language, and the folders that they stand for.

A name is quoted *and* escaped: unquoted spaces end it, and `*`, `[`, `{x}`, `@{x}` mean something else. A
byte outside ASCII is written `\\xNN`, so that the text is ASCII. A name with a quote or a control character
is refused: apparmor_parser reads some of them as the end of the name, and what follows as rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_PLAIN = frozenset(b"-._+=~%:;!$&'()<>#|` ")
"""Characters that need a backslash in no place, though some look as if they did."""
BELOW = "{,/,/**}"
"""After a path: it, it as a folder, and all below it."""


class NameRefusedError(ValueError):
    """A path that a profile cannot name."""


def quoted(pattern: str) -> str:
    """A pattern as a word of a rule."""
    return f'"{pattern}"'


def literal(path: bytes) -> str:
    """The pattern that matches these bytes and nothing else. Raises NameRefusedError."""
    return "".join(map(_escaped, path))


def _escaped(byte: int) -> str:
    if byte < 0x20 or byte == 0x7F or byte == 0x22:
        what = "a quote" if byte == 0x22 else "a control character"
        raise NameRefusedError(f"{what} in a path cannot be put into a profile")
    if byte >= 0x80:
        return f"\\x{byte:02x}"
    character = chr(byte)
    return character if character.isalnum() or character == "/" or byte in _PLAIN else f"\\{character}"


def territory(path: bytes, without: Iterable[bytes] = ()) -> str:
    """The pattern of `path` and all below it, but of nothing that is or is below one of `without`.

    AppArmor has no "except": a denial wins over every allowance, however precise. So what is to be spared is
    spelt out: names that differ from the spared one in some letter. They are alternatives of one pattern,
    since the parser's time grows steeply with the number of rules.
    """
    top = b"" if path == b"/" else path
    spared = [other[len(top) :].strip(b"/") for other in without]
    tree: dict[bytes, Tree] = {}
    for other in spared:
        _grow(tree, [part for part in other.split(b"/") if part])
    if not tree:
        return literal(top) + BELOW if top else "/{,**}"
    begins = literal(top) or "/"
    endings = [pattern.removeprefix(begins) for pattern in _patterns(literal(top), tree)]
    return f"{begins}{{{','.join(endings)}}}"


Tree = dict[bytes, "Tree"]
"""Folder names; an empty one is spared."""


def _grow(tree: Tree, parts: Sequence[bytes]) -> None:
    for depth, part in enumerate(parts):
        if part in tree and not tree[part]:
            return  # spared with all below it already
        tree = tree.setdefault(part, {})
        if depth == len(parts) - 1:
            tree.clear()


def _patterns(top: str, tree: Tree) -> list[str]:
    if not tree:
        return [top + BELOW]
    found = [f"{top}{{,/}}" if top else "/"]
    found += _other_names(f"{top}/", b"", sorted(tree))
    for name, inner in sorted(tree.items()):
        if inner:
            found += _patterns(f"{top}/{literal(name)}", inner)
    return found


def _other_names(folder: str, begun: bytes, names: Sequence[bytes]) -> list[str]:
    """Names in a folder that begin with `begun` and are none of `names` (which all begin so)."""
    found = []
    if begun and begun not in names:
        found.append(folder + literal(begun) + BELOW)
    following = sorted({name[len(begun)] for name in names if len(name) > len(begun)})
    # First, since between two others a hyphen is a range, whether escaped or not.
    others = "".join(map(_in_class, sorted(following, key=lambda byte: byte != ord("-"))))
    found.append(f"{folder}{literal(begun)}[^{others}/]**")
    for byte in following:
        longer = begun + bytes([byte])
        found += _other_names(folder, longer, [name for name in names if name.startswith(longer)])
    return found


def _in_class(byte: int) -> str:
    """Inside `[^…]` the parser takes a backslash before anything but a comma."""
    character = chr(byte)
    return (
        f"\\{character}"
        if byte < 0x80 and not character.isalnum() and character != ","
        else (character if character == "," else _escaped(byte))
    )


def ancestors(path: bytes) -> list[bytes]:
    """The folders on the way to `path`, without the root."""
    parts = path.strip(b"/").split(b"/")[:-1]
    return [b"/" + b"/".join(parts[: depth + 1]) for depth in range(len(parts))]


def other_names(path: bytes, aliases: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """(name, what it stands for) by which `path` or a part of it may be known to the kernel, itself first.

    `aliases`: (link, where it leads). In a root where /bin is a link the kernel says /usr/bin; in one where
    it is a folder it says /bin; a policy means the same by both, and may itself say either.
    """
    found, below = [(path, path)], path.rstrip(b"/") + b"/"
    for link, leads in aliases:
        if path == leads or path.startswith(leads + b"/"):
            found.append((link + path[len(leads) :], path))
        elif path == link or path.startswith(link + b"/"):
            found.append((leads + path[len(link) :], path))
        elif leads.startswith(below) and not (link + b"/").startswith(below):
            found.append((link, leads))
    return found
