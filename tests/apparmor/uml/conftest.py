"""Sandboxes in the guest: one backend, without a sensor."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from uml_boxes import Box

from invigilator.profiles.policy import Policy
from invigilator.sandbox import network
from invigilator.sandbox.base import SandboxSpec
from invigilator.sandbox.process import ProcessBackend, ProcessSandbox

HOME = Path("/var/lib/invigilator")


@pytest.fixture(scope="session")
def backend() -> Iterator[ProcessBackend]:
    made = ProcessBackend(HOME)
    with pytest.MonkeyPatch.context() as patch:
        # This kernel has no nftables, so no sandbox here has a link to the outside.
        patch.setattr(network, "needs", lambda policy: network.Needs(False, False, ()))
        yield made
    made.close()


MakeBox = Callable[..., Box]


@pytest.fixture
def make_box(backend: ProcessBackend) -> Iterator[MakeBox]:
    """Make and start a sandbox of a policy; keywords of `SandboxSpec`."""
    boxes: list[ProcessSandbox] = []

    def make(policy: Policy, **more: Any) -> Box:
        made = backend.prepare(SandboxSpec(uuid.uuid4(), policy, **more))
        boxes.append(made)
        made.start()
        return Box(made)

    yield make
    for made in boxes:
        made.remove()
