"""The text of a learned policy: ASCII, the same for the same facts, its comments saying the evidence."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from invigilator.profiles.apparmor.names import quoted
from invigilator.profiles.apparmor.statements import LETTERS
from invigilator.profiles.learning.tree import Pattern
from invigilator.profiles.policy import BindRule, EgressRule, FileAccess

EXAMPLES_MAX = 3
SHOWN_MAX = 160
ORDER: tuple[FileAccess, ...] = ("read", "write", "append", "exec", "link", "lock", "mmap")


@dataclass(frozen=True, slots=True)
class Content:
    """What the text says. `sources`: a line for each recording; `calls`: to be denied; `rest`: which lists of
    the base (files, raw, calls) hold something that stays; `network`: what else the base says of it."""

    name: str
    extends: str
    sources: Sequence[str]
    files: Sequence[Pattern]
    egress: Sequence[EgressRule]
    binds: Sequence[BindRule]
    calls: Sequence[str]
    rest: frozenset[str]
    network: Mapping[str, object]
    left_out: dict[str, Counter[bytes]]


def text(content: Content) -> str:
    """The policy's YAML."""
    return "\n".join(_lines(content)) + "\n"


def _lines(content: Content) -> Iterator[str]:
    yield "# Learned by `guard policy learn` from"
    yield from (f"#   {_shown(source.encode())}" for source in content.sources)
    yield "# It is about the agent's phase: setup and verify, and all that is not said here, are the base's."
    yield "version: 1"
    yield f"name: {scalar(content.name)}"
    yield f"extends: {scalar(content.extends)}"
    yield "require: [..., apparmor]   # nothing else refuses a file that no rule names"
    yield ""
    yield "filesystem:"
    yield "  default_action: deny"
    exact = [one for one in content.files if one.path is not None and not one.folder]
    yield from _exact(exact, rest="files" in content.rest)
    yield ""
    yield "phases:"
    yield "  agent:"
    yield from _patterns([one for one in content.files if one not in exact], rest="raw" in content.rest)
    yield from _calls(content.calls, rest="calls" in content.rest)
    yield "    network:"
    yield "      default_action: deny"
    yield from (f"      {key}: {json.dumps(value)}" for key, value in sorted(content.network.items()))
    yield from _rules("egress", content.egress, "nothing was reached")
    yield "      default_bind: deny"
    yield from _rules("bind", content.binds, "no port was taken")
    yield from _left_out(content.left_out)


def _exact(files: Sequence[Pattern], *, rest: bool) -> Iterator[str]:
    by_access: dict[tuple[FileAccess, ...], list[bytes]] = defaultdict(list)
    for one in files:
        if one.path is not None:
            by_access[_sorted(one.access)].append(one.path)
    if by_access:
        yield "  files:"
        yield from ["    - ..."] if rest else []
    for access, paths in sorted(by_access.items()):
        yield f"    - allow: [{', '.join(access)}]   # {len(paths)} recorded"
        yield "      paths:"
        yield from (f"        - {path_scalar(path)}" for path in sorted(paths))


def _patterns(files: Sequence[Pattern], *, rest: bool) -> Iterator[str]:
    if not files:
        return
    yield "    apparmor:"
    yield "      raw:"
    yield from ["        - ..."] if rest else []
    for one in sorted(files, key=lambda one: one.text):
        if one.instances:
            yield f"        # {one.why}: {len(one.instances)} distinct, {_examples(one.instances)}"
        yield f"        - {scalar(rule(one))}"


def rule(one: Pattern) -> str:
    """A pattern as a rule in AppArmor's language."""
    wanted = set(one.access)
    if "write" in wanted:
        wanted.discard("append")  # the parser refuses both together; the wider one holds the other
    if "exec" in wanted:
        wanted.add("mmap")
    letters = "".join(LETTERS[access] for access in ORDER if access in wanted and access != "exec")
    return f"{quoted(one.text)} {letters}{'ix' if 'exec' in wanted else ''}"


def _calls(calls: Sequence[str], *, rest: bool) -> Iterator[str]:
    if calls:
        yield "    syscalls:"
        yield "      deny:   # no recording has one of these"
        yield from ["        - ..."] if rest else []
        yield from (f"        - {call}" for call in calls)


def _rules(key: str, rules: Sequence[EgressRule | BindRule], why_none: str) -> Iterator[str]:
    if not rules:
        yield f"      {key}: []   # {why_none}"
        return
    yield f"      {key}:"
    for one in rules:
        said = one.model_dump(mode="json")
        words = (f"{name}: {json.dumps(value)}" for name, value in said.items() if value not in ([], False))
        yield f"        - {{{', '.join(words)}}}"


def _left_out(left_out: dict[str, Counter[bytes]]) -> Iterator[str]:
    if left_out:
        yield ""
        yield "# Left out:"
    for reason, what in sorted(left_out.items()):
        yield f"#   {_shown(reason.encode())}: {sum(what.values())} times, {_examples(what)}"


def _examples(names: Iterable[bytes]) -> str:
    found = sorted(names)
    more = f" and {len(found) - EXAMPLES_MAX} more" if len(found) > EXAMPLES_MAX else ""
    return ", ".join(_shown(name) for name in found[:EXAMPLES_MAX]) + more


def _shown(raw: bytes) -> str:
    """Any bytes as printable ASCII of bounded length, for a comment."""
    said = "".join(chr(byte) if 0x20 <= byte < 0x7F and byte != 0x5C else f"\\x{byte:02x}" for byte in raw)
    return said if len(said) <= SHOWN_MAX else f"{said[:SHOWN_MAX]}..."


def path_scalar(path: bytes) -> str:
    """A path as a policy writes it: ASCII, each other byte by its number."""
    said = "".join(
        chr(byte) if 0x20 <= byte < 0x7F else f"\\x{byte:02x}" for byte in path.replace(b"\\", b"\\\\")
    )
    return scalar(said)


def scalar(said: str) -> str:
    """Text as YAML's single-quoted scalar, which knows one escape: the quote itself, twice."""
    return "'" + said.replace("'", "''") + "'"


def _sorted(access: Iterable[FileAccess]) -> tuple[FileAccess, ...]:
    held = set(access)
    return tuple(one for one in ORDER if one in held)
