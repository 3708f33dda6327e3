"""What a git command line asks for: which commits it names, and whether it lists what no branch of its own
holds. Pure functions of argv."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

ABBREVIATION_MIN = 4
"""Hex digits that git takes for a commit's name at least (MINIMUM_ABBREV of git's object-name rules)."""
ABBREVIATION = 7
"""Hex digits that git writes at least (core.abbrev): a shorter name is an id only if it holds a digit, for
words are made of these letters too."""
NEVER = 1 << 62
PLAIN_NUMBER = 7
"""Digits alone, fewer than these, are a number (`-n 1234`)."""

_TAKES_VALUE = frozenset((b"-C", b"-c", b"--git-dir", b"--work-tree", b"--namespace", b"--exec-path"))
_TAKES = frozenset(
    b"show diff log checkout switch restore reset cat-file archive cherry-pick merge rebase format-patch "
    b"read-tree checkout-index ls-tree diff-tree worktree blame annotate whatchanged difftool".split()
)
"""Commands that read trees and blobs of the commits that they are asked for, and of no others."""
_READS = frozenset(
    b"show diff log checkout switch restore cherry-pick cat-file merge rebase format-patch archive diff-tree "
    b"ls-tree rev-list read-tree blame annotate range-diff difftool worktree bundle reset whatchanged clone "
    b"merge-tree merge-file unpack-file apply am revert shortlog fast-export grep checkout-index".split()
)
_LISTS = frozenset(b"reflog fsck lost-found".split())
_LISTING_COMMANDS = frozenset(
    b"log rev-list shortlog show whatchanged cat-file clone bundle fast-export grep".split()
)
_LISTING = frozenset(
    b"--all --branches --remotes --glob -g --walk-reflogs --reflog --batch-all-objects --mirror".split()
)
_NAMES = frozenset(b"branch tag update-ref symbolic-ref".split())
"""Commands that give a commit another name."""
_PATCH = re.compile(rb"(?:-p|-u|--patch|-U\d+|--unified=\d+|-c|--cc|-m|-L.*)\Z")
"""Options by which log prints what commits change."""
_PAST = re.compile(rb".*@\{-?\d+\}", re.DOTALL)
"""An entry of a reflog: it may be a commit that no branch holds any more."""
_WHOLE = frozenset(b"fast-export bundle".split())
"""Commands that hand out content with every commit that they list."""
_HEX = re.compile(rb"[0-9a-f]{4,64}\Z", re.IGNORECASE)
_ID = re.compile(rb"[0-9a-f]{7,64}(?![0-9a-z])", re.IGNORECASE)
_SUFFIX = re.compile(rb"(?:[~^:]|@\{).*", re.DOTALL)


@dataclass(slots=True)
class Future:
    """The future commits of a sandbox's repositories, and the objects that only they hold: id → since which
    event; ref → since which event."""

    commits: dict[bytes, int] = field(default_factory=dict)
    objects: dict[bytes, int] = field(default_factory=dict)
    refs: dict[bytes, int] = field(default_factory=dict)
    _heads: dict[bytes, list[bytes]] = field(default_factory=dict)
    _own: dict[bytes, int] = field(default_factory=dict)
    _prefixes: dict[bytes, list[bytes]] = field(default_factory=dict)

    def learn(self, commit: bytes, refs: Iterable[bytes], seq: int) -> None:
        """Take in a commit, and the full names of the refs that point at it."""
        commit = commit.lower()
        if commit not in self.commits:
            self.commits[commit] = seq
            self._heads.setdefault(commit[:ABBREVIATION_MIN], []).append(commit)
        for ref in refs:
            self.learn_ref(ref, seq)

    def learn_ref(self, ref: bytes, seq: int) -> None:
        """Take in a ref that points at such a commit, by its full name."""
        for name in _names_of(ref):
            self.refs.setdefault(name, seq)

    def learn_objects(self, ids: Iterable[bytes], seq: int) -> None:
        """Take in trees and blobs that only such commits hold."""
        for one in ids:
            if one not in self.objects:
                self.objects[one] = seq
                self._prefixes.setdefault(one[:ABBREVIATION], []).append(one)

    def learn_own(self, one: bytes, seq: int) -> None:
        """The agent made the same object itself; b"": perhaps any."""
        self._own.setdefault(one, seq)

    def own_since(self, one: bytes) -> int:
        """Since which event an object may be the agent's own work too."""
        return min(self._own.get(one, NEVER), self._own.get(b"", NEVER))

    def until(self, words: Iterable[bytes]) -> int:
        """Up to which event what `words` name is the future's alone: a commit is for ever."""
        named = [word for word in words if self.named(word) is not None]
        ids = [
            [o for o in self._prefixes.get(w[:ABBREVIATION].lower(), ()) if o.startswith(w.lower())]
            for w in named
        ]
        if any(not found for found in ids):
            return NEVER
        return max((self.own_since(one) for found in ids for one in found), default=NEVER)

    def named(self, revision: bytes) -> int | None:
        """Since which event `revision` names a future commit; None where it does not."""
        if revision in self.refs:
            return self.refs[revision]
        if not _HEX.match(revision) or (revision.isdigit() and len(revision) < PLAIN_NUMBER):
            return None
        word = revision.lower()
        if len(word) < ABBREVIATION and word.isalpha():
            return None
        known = [self.commits[c] for c in self._heads.get(word[:ABBREVIATION_MIN], ()) if c.startswith(word)]
        if len(word) >= ABBREVIATION:
            known += [
                self.objects[o] for o in self._prefixes.get(word[:ABBREVIATION], ()) if o.startswith(word)
            ]
        return min(known, default=None)

    def has_id(self, words: Iterable[bytes]) -> bool:
        """Whether a word is a future commit's id, or begins with one of `PLAIN_NUMBER` digits or more."""
        ids = (match.group() for word in words if (match := _ID.match(word)))
        return any(self.named(one) is not None for one in ids)


@dataclass(frozen=True, slots=True)
class Asked:
    """`named`: since which event the command line names a future commit and reads it. `lists`: it lists
    commits beyond HEAD's own history, or takes objects that its words do not name (ids on its standard input,
    entries of a reflog). `prints`: with what they change or hold. `until`: up to which event what it names is
    no work of the agent's own."""

    named: int | None = None
    lists: bool = False
    prints: bool = False
    until: int = NEVER


def takes(argv: Sequence[bytes]) -> bool:
    """Whether `git …` reads the content of what it is asked for, and of nothing else."""
    command, rest = _command(argv)
    options = {word.split(b"=")[0] for word in rest}
    return command in _TAKES and not options & _LISTING and b"--batch-check" not in options


def renamed(argv: Sequence[bytes], future: Future) -> tuple[int, list[bytes]] | None:
    """Since when, and which words, `git …` makes names of a future commit's; None where it does not."""
    command, rest = _command(argv)
    words = [word for word in rest if not word.startswith(b"-")]
    since = [s for word in words if (s := future.named(word)) is not None]
    if command not in _NAMES or not since or b"-d" in rest or b"-D" in rest:
        return None
    return min(since), [word for word in words if future.named(word) is None]


def asked(argv: Sequence[bytes], future: Future) -> Asked:
    """What `git …` asks for."""
    command, rest = _command(argv)
    if command in _LISTS:
        return Asked(None, True)
    if command not in _READS:
        return Asked()
    revisions = list(_revisions(rest))
    since = [s for word in revisions if (s := future.named(word)) is not None]
    lists = command in _LISTING_COMMANDS and any(word.split(b"=")[0] in _LISTING for word in rest)
    prints = lists and _prints(command, rest)
    fed = command == b"cat-file" and not lists and any(word.startswith(b"--batch") for word in rest)
    fed |= command in _LISTING_COMMANDS and b"--stdin" in rest
    past = any(_PAST.match(word) for word in rest if not word.startswith(b"-"))
    return Asked(min(since, default=None), lists or fed or past, prints, future.until(revisions))


def _prints(command: bytes, rest: Sequence[bytes]) -> bool:
    """Whether what is listed is printed with its content."""
    if command == b"cat-file":
        return any(word.split(b"=")[0] in (b"--batch", b"--batch-command") for word in rest)
    return command in _WHOLE or (command != b"rev-list" and any(_PATCH.match(word) for word in rest))


def _command(argv: Sequence[bytes]) -> tuple[bytes, Sequence[bytes]]:
    """git's subcommand, and what follows it."""
    program = argv[0].rpartition(b"/")[2] if argv else b""
    if program.startswith(b"git-"):
        return program[4:], argv[1:]
    at = 1
    while at < len(argv):
        word = argv[at]
        if word in _TAKES_VALUE:
            at += 2
        elif word.startswith(b"-"):
            at += 1
        else:
            return word, argv[at + 1 :]
    return b"", ()


def _revisions(words: Sequence[bytes]) -> Iterator[bytes]:
    """The revisions that arguments before `--` name: ranges taken apart, suffixes cut."""
    for word in words:
        if word == b"--":
            return
        if word.startswith(b"-"):
            word = word.partition(b"=")[2]
        for part in re.split(rb"\.\.\.?", word):
            bare = _SUFFIX.sub(b"", part.lstrip(b"^"))
            if bare:
                yield bare


def _names_of(ref: bytes) -> Iterator[bytes]:
    """The names by which git knows a ref (gitrevisions(7))."""
    yield ref
    if ref.startswith(b"refs/"):
        short = ref[5:]
        yield short
        for prefix in (b"heads/", b"tags/", b"remotes/"):
            if short.startswith(prefix):
                yield short[len(prefix) :]


def loose_object(path: bytes) -> bytes | None:
    """The id of the loose object that `path` is; None for other files."""
    head, _, tail = path.rpartition(b"/")
    is_object = head[:-2].endswith(b"/objects/") and len(tail) in (38, 62)
    return head[-2:] + tail if is_object else None
