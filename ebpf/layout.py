"""Records shared with the kernel programs other than events: the same structs as in `src/maps.h`."""

from __future__ import annotations

import numpy as np

MAX_SLOTS = 4096
PHASES = 4
KINDS = 136
"""Past every kind of event: each has a counter of its own."""
CGROUPS_AT_ONCE = 8

LOSS_REASONS = ("ring_full", "own_rate", "string", "storage")
"""`enum loss_reason`. `own_rate`: the sandbox would have filled the ring by itself; the first two are
lost events."""

NET_SETTING = np.dtype(
    [
        ("ruleset", "<u4"),
        ("binds", "<u4"),
        ("enforce", "u1"),
        ("default_allow", "u1"),
        ("loopback", "u1"),
        ("default_bind", "u1"),
    ]
)
BYTE_SUM = np.dtype([("bytes", "<u8"), ("writes", "<u8"), ("total", "<u8"), ("sent_ns", "<u8")])
MISS = np.dtype([("turn", "<u8"), ("count", "<u8")])

SLOT = np.dtype(
    [
        ("seq", "<u8"),
        ("string_sent", "<u8"),
        ("string_seen", "<u8"),
        ("registration", "<u4"),
        ("armed", "<u4"),
        ("next_step", "<u4"),
        ("next_actor", "<u4"),
        ("watches", "<u4"),
        ("declared", "<u4"),
        ("net", NET_SETTING, (PHASES,)),
        ("output", BYTE_SUM),
        ("files", BYTE_SUM),
        ("lost", "<u8", (8, len(LOSS_REASONS))),
        ("missed", MISS, (2,)),
        ("sent", "<u4", (KINDS,)),
        ("seen", "<u4", (KINDS,)),
    ]
)
"""`struct slot`: one sandbox, in memory shared with the kernel."""

ADOPTING = np.dtype([("slot", "<u4"), ("registration", "<u4"), ("actor", "<u4"), ("followed", "<u4")])
"""`struct adopting`: whose cgroups' threads are to be followed, and how many were not yet."""

STREAM = np.dtype([("slot", "<u4"), ("dev", "<u4"), ("ino", "<u8")])

REGISTRATION = np.dtype(
    [
        ("slot", "<u4"),
        ("registration", "<u4"),
        ("count", "<u4"),
        ("drop", "<u4"),
        ("failed", "<u4"),
        ("reserved", "<u4"),
        ("at", [("cgroup", "<u8"), ("phase", "<u4"), ("reserved", "<u4")], (CGROUPS_AT_ONCE,)),
    ]
)

PLACED = np.dtype(
    [("fd", "<u4"), ("hash", "<u4"), ("counted", "<u4"), ("reserved", "<u4"), ("place", "<u8")],
)

TAKEN = np.dtype(
    [
        ("slot", "<u4"),
        ("reserved", "<u4"),
        ("output_bytes", "<u8"),
        ("output_writes", "<u8"),
        ("output_total", "<u8"),
        ("file_bytes", "<u8"),
        ("file_writes", "<u8"),
        ("file_total", "<u8"),
    ]
)
