"""AppArmor's patterns as regular expressions, to say which of a policy's own rules is about a path.

`*` is any name's part, `**` also across folders, `?` one character, `[…]` one of them, `{a,b}` either.
"""

from __future__ import annotations

import functools
import re

VARIABLES = {"PROC": "/proc/", "HOME": "/{root,home/*}/", "profile_name": "*"}
"""Variables that stand for themselves in a question; a profile that uses others is resolved by import."""
_HEX = re.compile(r"\\x([0-9a-fA-F]{2})")


@functools.lru_cache(maxsize=1024)
def matcher(pattern: str) -> re.Pattern[bytes] | None:
    """The expression of a rule's path, quoted or not, over bytes of paths; None where it has no meaning."""
    said = pattern[1:-1] if pattern.startswith('"') else pattern
    try:
        return re.compile(_translate(said), re.DOTALL)
    except (re.error, ValueError, IndexError, KeyError):
        return None


def matches(pattern: str, path: bytes) -> bool:
    """Whether a rule about `pattern` is about `path`, or about it as a folder."""
    found = matcher(pattern)
    return found is not None and (
        found.fullmatch(path) is not None or found.fullmatch(path + b"/") is not None
    )


def literal_path(pattern: str) -> bytes | None:
    """The one path that a pattern without anything special stands for; None where it stands for several."""
    said = pattern[1:-1] if pattern.startswith('"') else pattern
    if re.search(r"(?<!\\)[*?\[\]{}^@]", said):
        return None
    raw = _HEX.sub(lambda match: chr(int(match[1], 16)), said)
    plain = re.sub(r"\\(.)", r"\1", raw)
    try:
        return plain.encode("latin-1") if _HEX.search(said) else plain.encode()
    except UnicodeEncodeError:
        return plain.encode()


def _translate(said: str) -> bytes:
    found: list[bytes] = []
    depth = at = 0
    while at < len(said):
        here = said[at]
        step = 1
        if match := _HEX.match(said, at):
            found.append(re.escape(bytes([int(match[1], 16)])))
            step = 4
        elif here == "\\":
            found.append(re.escape(said[at + 1].encode()))
            step = 2
        elif here == "*":
            deep = said[at : at + 2] == "**"
            step = 2 if deep else 1
            # After a slash, at its end, there must be something: `/x/*` is not `/x/`.
            last = at > 0 and said[at - 1] == "/" and said[at + step : at + step + 1] in ("", "}", ",")
            found.append((b"[^\\0]" if deep else b"[^/\\0]") + (b"+" if last else b"*"))
        elif here == "?":
            found.append(b"[^/\\0]")
        elif here == "[":
            end = said.index("]", at + 2)
            found.append(said[at : end + 1].encode())
            step = end + 1 - at
        elif here == "{":
            depth += 1
            found.append(b"(?:")
        elif here == "}" and depth:
            depth -= 1
            found.append(b")")
        elif here == "," and depth:
            found.append(b"|")
        elif here == "@" and said[at + 1 : at + 2] == "{":
            end = said.index("}", at)
            found.append(b"(?:" + _translate(VARIABLES[said[at + 2 : end]]) + b")")
            # `@{PROC}/x` is `/proc/x`: of two slashes the second goes.
            step = end + 1 - at + (said[end + 1 : end + 2] == "/")
        else:
            found.append(re.escape(here.encode()))
        at += step
    return b"".join(found)
