"""An existing AppArmor profile as a policy: what its language can say, and the rest as `apparmor.raw`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from invigilator.profiles import capabilities, library, protected
from invigilator.profiles.apparmor import globs, reading
from invigilator.profiles.apparmor.line import letters
from invigilator.profiles.apparmor.names import BELOW, literal, quoted
from invigilator.profiles.apparmor.others import SOCKETS
from invigilator.profiles.apparmor.reading import Block, Located
from invigilator.profiles.apparmor.statements import LETTERS, Rule, RuleError, checked, parse
from invigilator.profiles.errors import Place, PolicyError, Problem
from invigilator.profiles.paths import to_bytes, to_text
from invigilator.profiles.policy import FileAccess

EXPANSIONS_MAX = 64
"""Different texts that variables may make of one rule."""
Fate = Literal["policy", "raw", "given", "left out"]
_WHOLE = ("/{,**}", "/**", "/{**,}")
_BELOW = re.compile(r"(?:/\*\*|\{,/\*\*\}|/\{,\*\*\}|\{,/,/\*\*\}|\{,/\{,\*\*\}\})\Z")
_VARIABLE = re.compile(r"@\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Note:
    """What became of a rule: `policy`, in the policy's own words; `raw`, as it stands; `given`, every sandbox
    has it; `left out`, with the reason in `why`."""

    place: Place
    rule: str
    fate: Fate
    why: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.fate}: {self.rule}" + (f" ({self.why})" if self.why else "")


@dataclass(frozen=True, slots=True)
class Imported:
    """A policy's YAML and what became of each rule."""

    text: str
    notes: tuple[Note, ...]


@dataclass(slots=True)
class _Import:
    """One import under way."""

    variables: dict[str, list[str]]
    notes: list[Note] = field(default_factory=list)
    allowed: dict[str, set[str]] = field(default_factory=dict)
    denied: dict[str, set[str]] = field(default_factory=dict)
    raw: list[str] = field(default_factory=list)
    syscalls: dict[str, str] = field(default_factory=dict)
    listed: bool = True


def import_profile(
    path: Path, *, name: str | None = None, profile: str | None = None, base: Path = reading.BASE
) -> Imported:
    """The policy of a profile's file. `profile`: which, where the file has several; `name`: the policy's.

    Raises PolicyError where the text is no profile, with its line.
    """
    found = reading.read(path, base)
    block = _chosen(found.blocks, profile, path)
    work = _Import(found.variables)
    for located in block.inner:
        work.notes.append(
            Note(located.place, located.text, "left out", "a sandbox enters no profile inside it")
        )
    for located in block.statements:
        _take(work, located)
    return Imported(_policy(work, name or _policy_name(block.name), block), tuple(dict.fromkeys(work.notes)))


def _chosen(blocks: list[Block], profile: str | None, path: Path) -> Block:
    names = ", ".join(block.name for block in blocks)
    if not blocks:
        raise PolicyError.at(Place(str(path), 1, 1), "there is no profile in this file", "name another file")
    if profile is None and len(blocks) > 1:
        raise PolicyError.at(
            Place(str(path), 1, 1), f"it holds several profiles: {names}", "name one: --profile"
        )
    for block in blocks:
        if profile in (None, block.name):
            return block
    raise PolicyError.at(Place(str(path), 1, 1), f"there is no profile `{profile}`", f"it holds: {names}")


def _take(work: _Import, located: Located) -> None:
    try:
        rule = parse(located.text)
        for text in _expanded(located.text, work.variables):
            _sort(work, _kept(work, parse(text), located), located)
    except RuleError as error:
        if "rule" in locals() and rule.kind in ("change_profile", "abi", "hat", "profile", "alias"):
            work.notes.append(Note(located.place, located.text, "left out", str(error).partition(": ")[2]))
            return
        raise PolicyError([Problem(located.place, str(error), error.fix)]) from error


def _kept(work: _Import, rule: Rule, located: Located) -> Rule:
    """A rule that leads to another profile stays in this one: under no_new_privs nothing else works."""
    if not rule.transition:
        return checked(rule)
    owner = "owner " if rule.owner else ""
    text = f"{owner}{rule.path} {letters(rule.letters)}"
    work.notes.append(Note(located.place, located.text, "policy", f"`{rule.transition}` became `ix`"))
    return parse(text)


def _sort(work: _Import, rule: Rule, located: Located) -> None:
    fate: Fate = "policy"
    why = ""
    if rule.kind == "file" and not rule.owner and not rule.target:
        fate, why = _file(work, rule)
    elif rule.kind in ("userns", "io_uring") and not rule.deny and not rule.rest:
        work.syscalls[rule.kind] = "allow"
    elif rule.kind == "capability" and not rule.deny and rule.rest:
        wanted = [one for one in rule.rest.split() if one not in capabilities.SANDBOX]
        fate = "raw" if wanted else "given"
        work.raw += [f"capability {one}" for one in wanted]
    elif rule.kind == "network" and not rule.deny and rule.rest in SOCKETS:
        fate = "given"
    else:
        fate = "raw"
        work.raw.append(rule.text)
    work.notes.append(Note(located.place, located.text, fate, why))


def _file(work: _Import, rule: Rule) -> tuple[Fate, str]:
    pattern = rule.path.strip('"')
    said = {word for word, letter in LETTERS.items() if letter in rule.letters}
    if pattern in _WHOLE and not rule.deny and {"read", "write", "exec"} <= said:
        work.listed = False
        return "policy", "default_action: allow"
    top = _BELOW.sub("", pattern)
    path = globs.literal_path(top) if top else None
    if path is None or path.endswith(b"/") or not path.startswith(b"/") or b"//" in path:
        work.raw.append(rule.text)
        return "raw", ""
    side = work.denied if rule.deny else work.allowed
    side.setdefault(to_text(path), set()).update(said)
    return "policy", "the folder itself too" if top != pattern else "were it a folder, with what is below"


def _expanded(text: str, variables: dict[str, list[str]]) -> Iterator[str]:
    """`text` with every value of its variables in turn, those inside values too."""
    pending, made = [(text, 0)], 0
    while pending:
        said, depth = pending.pop(0)
        match = next((one for one in _VARIABLE.finditer(said) if one[1] != "profile_name"), None)
        if match is None:
            yield re.sub(r"(?<!:)//+", "/", said) if depth else said
            continue
        values = variables.get(match[1])
        if values is None:
            raise RuleError(f"the variable `{match[0]}` has no value", "include the tunables that set it")
        made += len(values)
        if made > EXPANSIONS_MAX or depth > EXPANSIONS_MAX:
            raise RuleError(f"`{text[:80]}` stands for more than {EXPANSIONS_MAX} rules", "use fewer values")
        pending += [(said[: match.start()] + value + said[match.end() :], depth + 1) for value in values]


def _beside_classes(work: _Import) -> None:
    """Denials of folders that `base` has a class in: as rules of the policy the two would contradict."""
    for rule in protected.rules(library.load("base")):
        for path in [one for one in work.denied if _holds(one, to_text(rule.path))]:
            said = frozenset(LETTERS[word] for word in work.denied.pop(path))
            work.raw.append(f"deny {quoted(literal(to_bytes(path)) + BELOW)} {letters(said, deny=True)}")


def _policy(work: _Import, name: str, block: Block) -> str:
    files: dict[str, Any] = {}
    if not work.listed:
        _beside_classes(work)
    if work.listed:
        files["default_action"] = "deny"
        # base watches writes to programs; what this profile does not name is refused instead.
        files["protected"] = {"system_binary": {"paths": []}}
    allowed = _without_denied(work) if work.listed else {}
    rules = [*_grouped(allowed, "allow"), *_grouped(work.denied, "deny")]
    if rules:
        files["files"] = rules
    said: dict[str, Any] = {
        "version": 1,
        "name": name,
        "extends": "base",
        "require": ["seccomp", "cgroup", "apparmor"],
    }
    if "complain" in block.flags:
        said |= {"mode": "observe"}
    said |= {"filesystem": files} if files else {}
    said |= {"syscalls": work.syscalls} if work.syscalls else {}
    raw = list(_effective(work))
    said |= {"apparmor": {"raw": raw}} if raw else {}
    head = f"# From the AppArmor profile `{block.name}`, {block.place.file}:{block.place.line}.\n"
    return _printable(head) + yaml.safe_dump(said, sort_keys=False, width=110, allow_unicode=True)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def _without_denied(work: _Import) -> dict[str, set[str]]:
    """What is allowed without what a denial takes away again, which a policy may not say."""
    found = {}
    for path, said in work.allowed.items():
        gone = {word for top, words in work.denied.items() if _holds(top, path) for word in words}
        kept = said - gone - ({"append"} if "write" in gone else set())
        if kept:
            found[path] = kept
    return found


def _holds(top: str, path: str) -> bool:
    return (path + "/").startswith(top.rstrip("/") + "/")


def _effective(work: _Import) -> Iterator[str]:
    """Rules of the rest, each once, without those that an equal denial undoes or that allow all once more."""
    rules = [parse(text) for text in dict.fromkeys(work.raw)]
    denied = {(rule.kind, rule.rest, rule.path) for rule in rules if rule.deny}
    for rule in rules:
        needed = work.listed or rule.kind not in ("file", "link")
        if rule.deny or (needed and (rule.kind, rule.rest, rule.path) not in denied):
            yield rule.text


def _grouped(rules: dict[str, set[str]], side: str) -> Iterator[dict[str, Any]]:
    order: tuple[FileAccess, ...] = ("read", "write", "append", "exec", "link", "lock", "mmap")
    by_access = sorted(rules.items(), key=lambda item: (sorted(item[1]), item[0]))
    for said, items in itertools.groupby(by_access, key=lambda item: sorted(item[1])):
        words = [word for word in order if word in said and not (word == "append" and "write" in said)]
        yield {"paths": [path for path, _ in items], side: words}


def _policy_name(name: str) -> str:
    plain = re.sub(r"[^a-z0-9_.-]+", "-", name.lower()).strip("-.")[:64]
    return plain if re.match(r"[a-z0-9]", plain) else "imported"
