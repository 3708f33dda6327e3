"""What the rollouts of a node share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from invigilator.ebpf.sensor import Sensor
from invigilator.guard.home import Home
from invigilator.guard.keep import Keeper
from invigilator.guard.pipeline import Pipeline
from invigilator.guard.refusals import Refusals
from invigilator.guard.ship import Shipper
from invigilator.sandbox.base import Backend


@dataclass(frozen=True, slots=True)
class Services:
    """The node's parts, as a rollout uses them."""

    home: Home
    sensor: Sensor
    pipeline: Pipeline
    shipper: Shipper
    keeper: Keeper
    backends: Mapping[str, Backend]
    denials: Refusals | None = None
