"""What detectors declare, and the document made of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from invigilator.detectors import document
from invigilator.detectors.base import Detector, registry
from invigilator.ebpf.events import Kind

KINDS = {
    "system_binary_overwrite",
    "verifier_tool_trojan",
    "test_tamper",
    "reward_forge",
    "phase_survivor",
    "residual_search",
    "harness_log_read",
    "oracle_access",
    "canary_read",
    "git_future_mining",
    "forged_request",
    "access_probe",
    "service_scan",
    "egress_violation",
    "log_flood",
    "disk_flood",
    "extent_swap_bypass",
    "sensor_flood",
}


def test_every_kind_of_the_slice_has_a_detector() -> None:
    assert set(registry()) >= KINDS


@pytest.mark.parametrize("detector", registry().values(), ids=lambda d: d.id)
def test_a_detector_declares_all_that_others_rely_on(detector: type[Detector]) -> None:
    assert detector.version >= 1
    assert detector.id == detector.kind == detector.__module__.rpartition(".")[2]
    assert detector.meaning.endswith(".")
    assert all(re.fullmatch(r"T\d{4}(\.\d{3})?", technique) for technique in detector.attack)
    assert detector.reads <= set(Kind)
    assert len({t.name for t in detector.thresholds}) == len(detector.thresholds)
    assert all(t.meaning for t in detector.thresholds)


def test_the_document_is_current() -> None:
    path = Path(__file__).parents[3] / "docs" / "detectors.md"
    assert path.read_text() == document.text(), (
        "run: python -m invigilator.detectors.document > docs/detectors.md"
    )


def test_the_document_says_what_no_kernel_sensor_sees() -> None:
    assert "## Not visible to a kernel sensor" in document.text()
