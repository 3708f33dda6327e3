"""What doctor is told."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from invigilator.ebpf.events import EVENT
from invigilator.ebpf.layout import SLOT
from invigilator.ebpf.loader import LoadError, check_layout
from invigilator.ebpf.probe import probe
from invigilator.ebpf.sensor import Sensor, SensorUnavailable

SIPHASH = r"""
#include <linux/types.h>
#include <stdio.h>
%s
int main(void)
{
	__u64 k0 = 0x0706050403020100ull, k1 = 0x0f0e0d0c0b0a0908ull, m[2] = { k0, k1 & (~0ull >> 8) };
	__u64 v0 = k0 ^ 0x736f6d6570736575ull, v1 = k1 ^ 0x646f72616e646f6dull;
	__u64 v2 = k0 ^ 0x6c7967656e657261ull, v3 = k1 ^ 0x7465646279746573ull;
	m[1] |= 15ull << 56;
	for (int i = 0; i < 2; i++) {
		v3 ^= m[i];
		sip_round(v0, v1, v2, v3); sip_round(v0, v1, v2, v3);
		v0 ^= m[i];
	}
	v2 ^= 0xff;
	for (int i = 0; i < 4; i++)
		sip_round(v0, v1, v2, v3);
	printf("%%llx", (unsigned long long)(v0 ^ v1 ^ v2 ^ v3));
}
"""


def test_everything_tried_says_what_it_needs() -> None:
    if os.geteuid() != 0:
        pytest.skip("kernel tests need root")
    found = {p.name: p for p in probe()}
    for one in found.values():
        assert one.works or (one.reason and one.remedy), one
    base = [p for p in found.values() if p.tier == "base"]
    assert {"tp_btf", "ringbuf", "control", "root", "btf", "compiler"} <= {p.name for p in base}
    if all(p.works for p in base):
        Sensor.open(bulk_bytes=4096, precious_bytes=4096, string_bytes=4096).close()


def test_the_round_of_the_hash_is_siphashs(tmp_path: Path) -> None:
    """The kernel's macro in SipHash-2-4 over the reference vector (Aumasson and Bernstein, appendix A)."""
    text = (Path(__file__).parents[2] / "ebpf/src/intern.h").read_text()
    macros = text[text.index("#define rotate") : text.index("#ifdef __bpf__")]
    (tmp_path / "t.c").write_text(SIPHASH % macros)
    subprocess.run(["gcc", "-o", tmp_path / "t", tmp_path / "t.c"], check=True, timeout=30)
    done = subprocess.run([tmp_path / "t"], capture_output=True, text=True, check=True, timeout=5)
    assert done.stdout == "a129ca6149be45e5"


def test_a_record_of_another_layout_is_refused(sensor: Sensor) -> None:
    check_layout(sensor._kernel, "slot", SLOT)
    import numpy as np

    moved = np.dtype([(name, EVENT[name]) for name in reversed(EVENT.names or ())])
    with pytest.raises(LoadError, match="differing"):
        check_layout(sensor._kernel, "event", moved)


def test_without_root_the_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SensorUnavailable, match="root"):
        Sensor.open()


def test_ring_sizes_must_be_powers_of_two() -> None:
    if os.geteuid() != 0:
        pytest.skip("kernel tests need root")
    with pytest.raises(SensorUnavailable, match="power of two"):
        Sensor.open(bulk_bytes=5000)
