"""What the library knows of each kind of incident: its weight, and the path classes that it watches."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from invigilator.profiles.fields import Name, Weight
from invigilator.profiles.form import Form
from invigilator.profiles.source import parse, read_file
from invigilator.profiles.validate import validate

WEIGHTS_FILE = Path(__file__).parent / "library" / "weights.yaml"


class Kind(Form):
    """One kind. `weight`: its weight once `clean`; `cheat`: its success can raise the reward."""

    channel: Literal["retrieval", "tamper", "network", "flood", "escape", "sensor"]
    weight: Weight
    clean: bool = False
    cheat: bool = False
    classes: list[Name] = Field(default=[])


class _WeightsForm(Form):
    version: Literal[1]
    kinds: Annotated[dict[Name, Kind], Field(min_length=1)]


@cache
def kinds() -> dict[str, Kind]:
    """Every kind that the library knows, by name."""
    return dict(validate(parse(read_file(WEIGHTS_FILE), WEIGHTS_FILE.name), _WeightsForm).kinds)


def default_weights() -> dict[str, float]:
    """The weight of every kind: 0 until `guard eval` has shown that its detector penalises no honest run."""
    return {name: kind.weight if kind.clean else 0.0 for name, kind in kinds().items()}
