"""Where the kernel keeps its names is found out from samples, or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from invigilator.ebpf.events import Records
from invigilator.ebpf.layout import PLACED
from invigilator.ebpf.names import find_table, infer
from invigilator.ebpf.sensor import Sensor

TABLE = 0xFFFF_8881_2340_0000


def sampled(shift: int, count: int = 64) -> Records:
    """Names, each the first of its chain, of a table with that shift."""
    placed = np.zeros(count, PLACED)
    placed["hash"] = placed["counted"] = np.random.default_rng(shift).integers(1 << 32, size=count)
    placed["place"] = TABLE + (placed["hash"] >> np.uint32(shift)).astype(np.uint64) * 8
    return placed


@pytest.mark.parametrize("shift", [5, 10, 15, 20, 24])
def test_a_table_of_any_size_is_found(shift: int) -> None:
    assert infer(sampled(shift)) == (TABLE, shift)


def test_names_that_are_not_the_first_of_their_chain_do_not_matter() -> None:
    placed = sampled(12)
    placed["place"][:40] = 0xFFFF_8880_0000_0008 + np.arange(40, dtype=np.uint64) * 192
    assert infer(placed) == (TABLE, 12)


def test_too_few_that_agree_are_not_believed() -> None:
    assert infer(sampled(12)[:7]) == (0, 0)
    assert infer(sampled(12)[:0]) == (0, 0)


def test_a_hash_that_the_kernel_counts_otherwise_is_not_believed() -> None:
    placed = sampled(12)
    placed["counted"][3] ^= 1
    assert infer(placed) == (0, 0)


def test_names_that_are_in_no_table_are_left_out() -> None:
    placed = sampled(12)
    placed["place"][:8] = 0
    assert infer(placed) == (TABLE, 12)


def test_this_kernels_table_is_found_each_time(sensor: Sensor) -> None:
    address, shift = find_table(sensor._kernel)
    assert address % 4096 == 0 and address >> 47 == 0x1FFFF
    assert 4 <= shift <= 24
    assert find_table(sensor._kernel) == (address, shift)
