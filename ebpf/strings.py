"""Strings that the kernel sent once: serial → bytes, mount tables, and what may be forgotten.

The kernel numbers strings one after the other, so a table over the live window of serials turns whole columns
into codes by indexing. A string stands for one text of one sandbox: path mapping and redaction happen once,
when it arrives.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .events import STRING_FIELDS, EventBatch, Flag, Records, string_codes
from .redact import redact

SERIALS = 1 << 31
"""Serials from here on are user space's own."""

ROLE_SAID, ROLE_OBJECT, ROLE_JOINED, ROLE_ARGV = range(4)
_GROWTH = 4096

Places = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount: superblock device, the folder of that file system that is mounted, and where."""

    dev: int
    fs_root: bytes
    mount_point: bytes


class MountTable:
    """Paths from a superblock's root → paths in the sandbox."""

    def __init__(self, mounts: Sequence[Mount]) -> None:
        self._by_dev: dict[int, list[Mount]] = {}
        for mount in sorted(mounts, key=lambda m: len(m.fs_root), reverse=True):
            self._by_dev.setdefault(mount.dev, []).append(mount)

    def map(self, dev: int, path: bytes) -> bytes:
        """The path in the sandbox; where no mount holds it, the path itself."""
        for mount in self._by_dev.get(dev, ()):
            root = mount.fs_root.rstrip(b"/")
            if path == root or path.startswith(root + b"/") or not root:
                rest = path[len(root) :].lstrip(b"/")
                point = mount.mount_point.rstrip(b"/")
                return point + b"/" + rest if rest else (point or b"/")
        return path


class StringTable:
    """All strings that events may still name.

    A string's *place* is its distance from the oldest that is kept, plus 1; place 0 is the absent string, the
    last place stands for all that are not there.
    """

    def __init__(self) -> None:
        self._base = 1
        self._texts: list[bytes] = [b""]
        self._present = np.zeros(_GROWTH, np.bool_)
        self._present[0] = True
        self._redacted = np.zeros(_GROWTH, np.bool_)
        self._any_redacted = False
        self._own: dict[int, bytes] = {}
        self._next_own = SERIALS
        self._mounts: dict[int, MountTable] = {}
        self._deferred: dict[int, list[tuple[int, int, int, bytes]]] = {}

    def __len__(self) -> int:
        return int(self._present.sum()) - 1 + len(self._own)

    def set_mounts(self, slot: int, mounts: Sequence[Mount]) -> None:
        """The mount table of a sandbox; for strings that arrive from now on, and those that were deferred."""
        self._mounts[slot] = MountTable(mounts)
        for serial, dev, role, raw in self._deferred.pop(slot, ()):
            place = (serial - self._base) % SERIALS + 1
            if place < len(self._texts):
                self._texts[place] = self._locate(slot, dev, role, raw)

    def defer(self, slot: int) -> None:
        """Remember the sandbox's paths until its mounts are set: nobody may ask for them before."""
        self._deferred.setdefault(slot, [])

    def forget_slot(self, slot: int) -> None:
        """The sandbox is gone."""
        self._mounts.pop(slot, None)
        self._deferred.pop(slot, None)

    def add(self, serial: int, slot: int, dev: int, role: int, raw: bytes) -> None:
        """A string from the kernel."""
        place = (serial - self._base) % SERIALS + 1
        if place >= SERIALS // 2:  # older than all that is kept: nothing can name it
            return
        self._grow(place + 1)
        text = raw
        if role == ROLE_ARGV:
            text = redact(raw)
            if text is not raw:
                self._redacted[place] = self._any_redacted = True
        elif role in (ROLE_OBJECT, ROLE_JOINED):
            if slot in self._deferred:
                self._deferred[slot].append((serial, dev, role, raw))
            text = self._locate(slot, dev, role, raw)
        self._texts[place] = text
        self._present[place] = True

    def add_own(self, text: bytes) -> int:
        """A serial of user space's own for `text`; 0 for the empty string."""
        if not text:
            return 0
        serial = self._next_own
        self._next_own = SERIALS + (serial + 1 - SERIALS) % (SERIALS - 1)
        self._own[serial] = text
        return serial

    def drop_own(self, serials: Iterable[int]) -> None:
        """Forget serials of `add_own`."""
        for serial in serials:
            self._own.pop(serial, None)

    def drop_before(self, serial: int) -> None:
        """Forget every kernel string older than `serial`."""
        count = (serial - self._base) % SERIALS
        if not 0 < count < len(self._texts):
            return
        self._texts[1 : count + 1] = []
        for name in ("_present", "_redacted"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old[:1], old[count + 1 :], np.zeros(count, np.bool_)]))
        self._any_redacted = bool(self._redacted.any())
        self._base = (self._base + count) % SERIALS

    def places(self, records: Records) -> Places:
        """Places of the four string fields, shape (n, 4)."""
        serials = np.ascontiguousarray(string_codes(records))
        found = (serials - np.uint32(self._base)) & np.uint32(SERIALS - 1)
        np.minimum(found, np.uint32(len(self._present) - 2), out=found)
        found += np.uint32(1)
        found *= serials != 0
        if self._own:
            found *= serials < SERIALS  # user space's own: `localise` sees to them
        return found

    def missing(self, places: Places) -> npt.NDArray[np.bool_] | None:
        """Which events name a string that has not arrived, shape (n,); None: none does."""
        here = self._present.take(places)
        # Row by row costs fifty times as much as all at once, and is hardly ever asked for.
        return None if here.all() else ~np.asarray(here.all(axis=1), np.bool_)

    def localise(self, records: Records, places: Places, missing: npt.NDArray[np.bool_] | None) -> EventBatch:
        """`records`, changed in place, as a batch over the strings that they name. What is missing becomes 0,
        and the event is flagged."""
        if missing is not None:
            records["flags"][missing] |= int(Flag.STRING_LOST)
            places[~self._present[places]] = 0
        if self._any_redacted:
            hidden = self._redacted[places[:, STRING_FIELDS.index("text")]]
            records["flags"][hidden] |= int(Flag.REDACTED)
        mark = np.zeros(len(self._texts), np.bool_)
        mark[places.reshape(-1)] = True
        mark[0] = True
        used = np.flatnonzero(mark)
        local = np.empty(len(mark), np.uint32)
        local[used] = np.arange(len(used), dtype=np.uint32)
        serials = string_codes(records)
        own = np.nonzero(serials >= SERIALS) if self._own else ()
        named = serials[own] if own else serials[:0, 0]
        serials[...] = local.take(places)
        texts = [self._texts[place] for place in used.tolist()]
        if len(named):
            self._add_own(records, own, named, texts)
        return EventBatch(records, texts)

    def _add_own(
        self,
        records: Records,
        where: Sequence[npt.NDArray[np.intp]],
        serials: npt.NDArray[np.uint32],
        texts: list[bytes],
    ) -> None:
        """Codes for user space's own strings, at the end of the batch's."""
        distinct, inverse = np.unique(serials, return_inverse=True)
        codes = np.arange(len(texts), len(texts) + len(distinct), dtype=np.uint32)
        texts.extend(self._own.get(serial, b"") for serial in distinct.tolist())
        string_codes(records)[where[0], where[1]] = codes[inverse]

    def _grow(self, length: int) -> None:
        self._texts.extend([b""] * (length - len(self._texts)))
        # One more than the texts: the last place must stay empty.
        if length >= len(self._present):
            more = np.zeros(max(len(self._present), length), np.bool_)
            self._present = np.concatenate([self._present, more])
            self._redacted = np.concatenate([self._redacted, more])

    def _locate(self, slot: int, dev: int, role: int, raw: bytes) -> bytes:
        table = self._mounts.get(slot)
        if role == ROLE_OBJECT:
            return table.map(dev, raw) if table else raw
        folder, _, said = raw.partition(b"\0")
        base = table.map(dev, folder) if table else folder
        joined = posixpath.normpath(base + b"/" + said)
        return joined[1:] if joined.startswith(b"//") else joined
