"""AppArmor's language, as far as a policy's `apparmor.raw` and an imported profile need it.

A rule is taken apart so that it can be explained, compared and bounded; what it means in the kernel is said
by apparmor_parser, which compiles every profile (apparmor.d(5) is the reference of both).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

RULE_MAX = 8192
"""Longest rule in characters."""
LETTERS = {"read": "r", "write": "w", "append": "a", "exec": "x", "link": "l", "lock": "k", "mmap": "m"}
KINDS = frozenset(
    {"capability", "network", "mount", "remount", "umount", "unmount", "pivot_root", "signal", "ptrace",
     "unix", "dbus", "mqueue", "io_uring", "userns", "set"}
)  # fmt: skip
"""First words of rules that are not about files."""
NOT_HERE = {
    "include": (
        "an include's text may change under the policy",
        "run `guard policy import`, which resolves it",
    ),
    "abi": ("the compiler pins the ABI", "remove it"),
    "profile": ("profiles do not nest here", "write the rules themselves"),
    "hat": ("hats are not entered in a sandbox", "write the rules themselves"),
    "alias": ("aliases hold for whole files", "write both paths"),
    "change_profile": ("a sandbox keeps its profile", "remove it"),
    "all": ("`all` would undo the profile", "write what is needed"),
    "if": ("conditions are not read here", "write the rule that holds"),
}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_PERMISSIONS = re.compile(r"[rwaxlkmiIpPcCuU]+")


class RuleError(ValueError):
    """Text that is no rule which a policy may hold; `fix` says what to write, `line` (from 0) where it is."""

    def __init__(self, message: str, fix: str, line: int = 0) -> None:
        super().__init__(message)
        self.fix = fix
        self.line = line


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement. `line`: where it begins, from 0; `opens`: a `{` follows; `closes`: it is `}`."""

    text: str
    line: int
    opens: bool = False
    closes: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule's parts. `path`, `letters` and `target` are a file rule's; `rest` is what any other says."""

    kind: str
    text: str
    deny: bool = False
    audit: bool = False
    owner: bool = False
    path: str = ""
    letters: frozenset[str] = frozenset()
    target: str = ""
    transition: str = ""
    rest: str = ""


def split(text: str) -> Iterator[Statement]:
    """The statements of a text, comments left out. RuleError where a quote or a bracket does not close."""
    words: list[str] = []
    begun = line = 0
    for token, lines in _tokens(text):
        if not "".join(words).strip():
            words, begun = [], line
        line += lines
        if token == "," or (token == "\n" and _ends_at_newline(words)):
            if "".join(words).strip():
                yield Statement(_joined(words), begun)
            words = []
        elif token in ("{", "}"):
            if token == "}" and "".join(words).strip():
                raise RuleError(f"`{_joined(words)}` does not end", "end each rule with a comma", begun)
            yield Statement(_joined(words), begun, opens=token == "{", closes=token == "}")
            words = []
        else:
            words.append(" " if token == "\n" else token)
    if "".join(words).strip():
        raise RuleError(f"`{_joined(words)[:80]}` does not end", "end each rule with a comma", begun)


def one(text: str) -> str:
    """`text` as one rule that a policy may hold, on one line and without its comma. Raises RuleError."""
    if len(text) > RULE_MAX:
        raise RuleError(f"a rule of {len(text)} characters", f"use at most {RULE_MAX}")
    found = list(split(text.strip().removesuffix(",") + ","))
    if len(found) != 1 or found[0].opens or found[0].closes:
        shown = f"{text[:60]}…" if len(text) > 60 else text
        raise RuleError(f"`{shown.strip()}` is not one rule", "write one rule an entry")
    checked(parse(found[0].text))
    return found[0].text


def checked(rule: Rule) -> Rule:
    """`rule`, which a policy may hold. Raises RuleError for what leaves the profile or hides its text."""
    if rule.kind in NOT_HERE:
        raise RuleError(f"`{rule.text[:80]}`: {NOT_HERE[rule.kind][0]}", NOT_HERE[rule.kind][1])
    if rule.transition:
        message = f"`{rule.text[:80]}`: under no_new_privs only `ix` works, not `{rule.transition}`"
        raise RuleError(message, "write `ix`")
    return rule


def parse(text: str) -> Rule:
    """A statement's text as a rule. Raises RuleError where its kind is not known or it is not whole."""
    if _CONTROL.search(text):
        raise RuleError("a rule cannot hold control characters", "remove them")
    words = text
    said: set[str] = set()
    while (match := re.match(r"(audit|deny|allow|owner|quiet)\b(?![/{\"])\s*", words)) is not None:
        said.add(match[1])
        words = words[match.end() :]
    found = _parts(text, words, deny="deny" in said)
    return replace(found, deny="deny" in said, audit="audit" in said, owner="owner" in said)


def _parts(text: str, words: str, *, deny: bool) -> Rule:
    head = re.match(r"#?([a-z_]+)", words)
    kind = head[1] if head else ""
    parts = _words(words)
    if kind == "link":
        return _link(text, [part for part in parts[1:] if part != "subset"])
    if kind == "file" or words[:1] in ("/", '"', "@") or _permissions_first(words):
        return _file(text, parts[1:] if kind == "file" else parts, deny=deny)
    if head and (kind in KINDS or kind in NOT_HERE):
        return Rule(kind, text, rest=" ".join(words[len(head[0]) :].split()))
    raise RuleError(f"`{text[:80]}` is no rule of AppArmor that is known here", "see apparmor.d(5)")


def _permissions_first(words: str) -> bool:
    return re.match(r"[rwaxlkmiIpPcCuU]+\s+[\"/@]", words) is not None


def _link(text: str, parts: list[str]) -> Rule:
    if len(parts) != 3 or parts[1] != "->":
        raise RuleError(f"`{text[:80]}` is no whole link rule", "write `link NAME -> TARGET`")
    return Rule("link", text, path=parts[0], letters=frozenset("l"), target=parts[2])


def _file(text: str, parts: list[str], *, deny: bool) -> Rule:
    if not parts:  # `file,`: every file, every access
        return Rule("file", text, path="/{,**}", letters=frozenset("rwlkmx"))
    target = parts[3] if len(parts) == 4 and parts[2] == "->" else ""
    if len(parts) != 2 and not target:
        raise RuleError(f"`{text[:80]}` is no whole rule about files", 'write `"/path" rw`; quote spaces')
    path, access = parts[:2] if parts[0][:1] in ('"', "/", "@") else parts[1::-1]
    if not _PERMISSIONS.fullmatch(access):
        raise RuleError(f"`{access}` in `{text[:80]}` is no access", "use letters of rwaxlkm, `ix` to run")
    mode = re.sub(r"[rwalkm]", "", access)
    stays = mode in ("", "ix") or (deny and mode == "x")
    kept = frozenset(access) & frozenset("rwalkm") | (frozenset("x") if mode else frozenset())
    return Rule("file", text, path=path, letters=kept, target=target, transition="" if stays else mode)


def _words(text: str) -> list[str]:
    """By spaces outside quotes."""
    return re.findall(r'(?:"(?:[^"\\]|\\.)*"|\\.|\S)+', text)


def _ends_at_newline(words: list[str]) -> bool:
    """Includes and variables have no comma."""
    said = "".join(words).lstrip()
    return re.match(r"(#?include\b(?! if exists\s*$)\s*\S|[@$]\{\w+\}\s*\+?=)", said) is not None


def _joined(words: list[str]) -> str:
    """With one space where there were several, but for those in quotes."""
    found = ""
    for word in words:
        if word.startswith('"'):
            found += word
        else:
            plain = re.sub(r"\s+", " ", word)
            found += plain.lstrip(" ") if found.endswith(" ") else plain
    return found.strip()


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    """(token, newlines in it): quoted text, words with their braces, and what separates rules."""
    at = line = 0
    while at < len(text):
        end, token = _token(text, at, line)
        lines = text.count("\n", at, end)
        yield token, lines
        line += lines
        at = end


def _token(text: str, at: int, line: int) -> tuple[int, str]:
    here = text[at]
    if here == '"':
        return _quoted(text, at, line)
    begins = at == 0 or text[at - 1].isspace() or text[at - 1] in ",{}()"
    if here == "#" and begins and not text.startswith("#include", at):
        end = text.find("\n", at)
        return (len(text) if end < 0 else end), " "
    if here == "\\":
        return at + 2, text[at : at + 2]
    if here == "(" or (here == "{" and not _is_block(text, at)):
        return _bracketed(text, at, line)
    return at + 1, here


def _is_block(text: str, at: int) -> bool:
    """Between spaces a brace opens a block; beside a letter it is an alternation or a variable's."""
    return (at == 0 or text[at - 1].isspace()) and not text[at + 1 : at + 2].strip()


def _quoted(text: str, at: int, line: int) -> tuple[int, str]:
    match = re.compile(r'"(?:[^"\\\n]|\\.)*"').match(text, at)
    if match is None:
        raise RuleError("a quote does not close on its line", 'end it with `"`', line)
    return match.end(), match[0]


def _bracketed(text: str, at: int, line: int) -> tuple[int, str]:
    closing = {"(": ")", "{": "}"}[text[at]]
    depth = 0
    for end in range(at, len(text)):
        if text[end] == "\n" and closing == "}":
            break
        depth += (text[end] == text[at]) - (text[end] == closing)
        if depth == 0:
            return end + 1, re.sub(r"\s+", " ", text[at : end + 1])
    raise RuleError(f"`{text[at]}` does not close", f"end it with `{closing}`", line)
