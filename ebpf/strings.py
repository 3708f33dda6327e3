"""Strings that the kernel sent once: serial → bytes, mount tables, and what may be forgotten.

The kernel numbers strings one after the other, so a table over the live window of serials turns whole columns
into codes by indexing. A string stands for one text of one sandbox: path mapping and redaction happen once,
when it arrives.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .events import STRING_FIELDS, EventBatch, Flag, Records
from .redact import redact

SERIALS = 1 << 31
"""Serials from here on are user space's own."""

ROLE_SAID, ROLE_OBJECT, ROLE_JOINED, ROLE_ARGV = range(4)
_GROWTH = 4096


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
    """All strings that events may still name."""

    def __init__(self) -> None:
        self._base = 1
        self._texts: list[bytes] = []
        self._present = np.zeros(_GROWTH, np.bool_)
        self._redacted = np.zeros(_GROWTH, np.bool_)
        self._own: dict[int, bytes] = {}
        self._next_own = SERIALS
        self._mounts: dict[int, MountTable] = {}

    def __len__(self) -> int:
        return int(self._present.sum()) + len(self._own)

    def set_mounts(self, slot: int, mounts: Sequence[Mount]) -> None:
        """The mount table of a sandbox; for strings that arrive from now on."""
        self._mounts[slot] = MountTable(mounts)

    def forget_slot(self, slot: int) -> None:
        """The sandbox is gone."""
        self._mounts.pop(slot, None)

    def add(self, serial: int, slot: int, dev: int, role: int, raw: bytes) -> None:
        """A string from the kernel."""
        place = (serial - self._base) % SERIALS
        if place >= SERIALS // 2:  # older than all that is kept: nothing can name it
            return
        if place >= len(self._texts):
            self._grow(place + 1)
        text = raw
        if role == ROLE_ARGV:
            text = redact(raw)
            self._redacted[place] = text is not raw
        elif role in (ROLE_OBJECT, ROLE_JOINED):
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

    def drop_own(self, serial: int) -> None:
        """Forget a serial of `add_own`."""
        self._own.pop(serial, None)

    def drop_before(self, serial: int) -> None:
        """Forget every kernel string older than `serial`."""
        count = (serial - self._base) % SERIALS
        if not 0 < count <= len(self._texts):
            return
        self._texts = self._texts[count:]
        self._present = np.concatenate([self._present[count:], np.zeros(_GROWTH, np.bool_)])
        self._redacted = np.concatenate([self._redacted[count:], np.zeros(_GROWTH, np.bool_)])
        self._base = (self._base + count) % SERIALS

    def unresolved(self, records: Records) -> npt.NDArray[np.bool_]:
        """Which events name a string that has not arrived, shape (n,)."""
        missing = np.zeros(len(records), np.bool_)
        for name in STRING_FIELDS:
            serials = records[name]
            missing |= (serials != 0) & ~self._known(serials)
        return missing

    def blank(self, records: Records) -> None:
        """Set string fields that cannot be resolved to 0, and flag it, in place."""
        for name in STRING_FIELDS:
            serials = records[name]
            lost = (serials != 0) & ~self._known(serials)
            records[name][lost] = 0
            records["flags"][lost] |= int(Flag.STRING_LOST)

    def localise(self, records: Records) -> EventBatch:
        """`records`, changed in place, as a batch over the strings that they name."""
        self._flag_redacted(records)
        window = len(self._texts) + 1
        own = list(self._own)
        mark = np.zeros(window + len(own), np.bool_)
        columns = []
        for name in STRING_FIELDS:
            places = self._places(records[name], window, own)
            mark[places] = True
            columns.append(places)
        mark[0] = True
        used = np.flatnonzero(mark)
        local = np.zeros(len(mark), np.uint32)
        local[used] = np.arange(len(used), dtype=np.uint32)
        for name, places in zip(STRING_FIELDS, columns, strict=True):
            records[name] = local[places]
        texts = [b""] + [
            self._texts[place - 1] if place < window else self._own[own[place - window]]
            for place in used[1:].tolist()
        ]
        return EventBatch(records, texts)

    def _places(self, serials: npt.NDArray[np.uint32], window: int, own: list[int]) -> npt.NDArray[np.int64]:
        places = (serials.astype(np.int64) - self._base) % SERIALS + 1
        places[serials == 0] = 0
        high = serials >= SERIALS
        if high.any():
            order = {serial: window + i for i, serial in enumerate(own)}
            places[high] = [order[serial] for serial in serials[high].tolist()]
        return places

    def _known(self, serials: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        places = (serials.astype(np.int64) - self._base) % SERIALS
        inside = places < len(self._texts)
        known: npt.NDArray[np.bool_] = inside & self._present[np.where(inside, places, 0)]
        high = serials >= SERIALS
        if high.any():
            known[high] = [serial in self._own for serial in serials[high].tolist()]
        return known

    def _flag_redacted(self, records: Records) -> None:
        if not self._redacted.any():
            return
        texts = records["text"]
        places = (texts.astype(np.int64) - self._base) % SERIALS
        inside = (texts != 0) & (texts < SERIALS) & (places < len(self._texts))
        hidden = inside & self._redacted[np.where(inside, places, 0)]
        records["flags"][hidden] |= int(Flag.REDACTED)

    def _grow(self, length: int) -> None:
        self._texts.extend([b""] * (length - len(self._texts)))
        if length > len(self._present):
            more = np.zeros(max(_GROWTH, length), np.bool_)
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
