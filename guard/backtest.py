"""What a penalty policy would have done to rewards: recorded rollouts under it, beside what they got.

    tried = Invigilator().backtest("my-policy.yaml", since="7d", rewards={"r1": 1.0, "r2": 0.0})
    tried.kinds, tried.checkpoints, tried.unknown

Detection is unchanged: incidents are those that were recorded. Needs nothing beyond a bare install.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from invigilator.guard.errors import GuardError, MissingError

Rewards = Mapping[str, float] | Mapping[tuple[str | None, str], float]
UNITS_S = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
NO_CHECKPOINT = "(none)"


@dataclass(frozen=True, slots=True)
class KindChange:
    """One kind: rollouts that it costs something, before and after, and in how many its cost changed, by how
    much in the mean of those (below 0: dearer)."""

    kind: str
    rollouts_before: int
    rollouts_after: int
    changed: int
    mean_change: float


@dataclass(frozen=True, slots=True)
class CheckpointChange:
    """The rollouts of one checkpoint. `changed`: value or drop differ. `mean_change`: of the reward, over the
    changed ones known in both. `newly_negative`: penalised reward below 0 that was not (without rewards: the
    penalty). `reranked`: groups whose members' order changed. `flipped`: advantages (penalised reward less
    its group's mean, dropped ones left out) whose sign changed."""

    checkpoint: str
    rollouts: int
    changed: int
    mean_change: float
    now_dropped: int
    no_longer_dropped: int
    newly_negative: int
    groups: int
    reranked: int
    flipped: int
    mean_before: float | None
    mean_after: float | None


@dataclass(frozen=True, slots=True)
class Backtest:
    """The whole result. `unknown`: what it cannot know, a sentence each."""

    rollouts: int
    with_reward: int
    kinds: list[KindChange]
    checkpoints: list[CheckpointChange]
    unknown: list[str]

    def json(self) -> dict[str, Any]:
        """The result as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Rollout:
    """A rollout's reward after its penalty, before and after; None where it is dropped."""

    key: tuple[str | None, str]
    checkpoint: str
    group: tuple[str | None, str] | None
    before: float | None
    after: float | None


def compare(tried: Mapping[str, Any], rewards: Rewards) -> Backtest:
    """The result from the service's answer (`/v1/penalties/backtest`) and rewards by rollout, or by
    (run, rollout)."""
    pairs = tried["rollouts"]
    keyed: Mapping[Any, float] = rewards
    rollouts = [_rollout(pair, keyed) for pair in pairs]
    by_checkpoint: dict[str, list[_Rollout]] = {}
    for one in rollouts:
        by_checkpoint.setdefault(one.checkpoint, []).append(one)
    with_reward = sum(_reward(pair, keyed) is not None for pair in pairs)
    return Backtest(
        len(pairs),
        with_reward,
        _kinds(pairs),
        [_checkpoint(name, found) for name, found in sorted(by_checkpoint.items(), key=_in_order)],
        _unknown(tried, with_reward),
    )


def label_rewards(tried: Mapping[str, Any], label: str) -> dict[tuple[str | None, str], float]:
    """The rewards that a label of the rollouts holds; those without it, or without a number, have none."""
    found = {}
    for pair in tried["rollouts"]:
        try:
            value = float(pair["labels"][label])
        except (KeyError, ValueError):
            continue
        if math.isfinite(value):
            found[pair["run_id"], pair["rollout_id"]] = value
    return found


def read_rewards(path: Path) -> dict[Any, float]:
    """Rewards from a .csv or .parquet file: columns `rollout_id`, `reward`, and `run_id` of several runs."""
    rows = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    found: dict[Any, float] = {}
    for number, row in enumerate(rows, start=1):
        try:
            value = float(row["reward"])
            name = str(row["rollout_id"])
        except (KeyError, TypeError, ValueError) as error:
            fix = "it needs the columns rollout_id and reward, a number"
            raise GuardError("this is no table of rewards", where=f"{path}, row {number}", fix=fix) from error
        found[(row["run_id"] or None, name) if row.get("run_id") is not None else name] = value
    return found


def since_when(text: str, now: datetime | None = None) -> datetime:
    """`7d`, `12h`, `30m`, `2w` ago, or a time as RFC 3339 has it."""
    try:
        if text[-1:] in UNITS_S:
            return (now or datetime.now(UTC)) - timedelta(seconds=float(text[:-1]) * UNITS_S[text[-1]])
        at = datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        raise GuardError(f"{text!r} is no time", fix="write 7d, 12h, or 2026-01-31T12:00:00Z") from error
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _rollout(pair: Mapping[str, Any], rewards: Mapping[Any, float]) -> _Rollout:
    key = (pair["run_id"], pair["rollout_id"])
    group = None if pair["group"] is None else (pair["run_id"], pair["group"])
    reward = _reward(pair, rewards) or 0.0
    values = [None if one["drop"] else reward + one["value"] for one in (pair["before"], pair["after"])]
    return _Rollout(key, pair["labels"].get("checkpoint", NO_CHECKPOINT), group, *values)


def _reward(pair: Mapping[str, Any], rewards: Mapping[Any, float]) -> float | None:
    return rewards.get((pair["run_id"], pair["rollout_id"]), rewards.get(pair["rollout_id"]))


def _kinds(pairs: Iterable[Mapping[str, Any]]) -> list[KindChange]:
    costs: dict[str, list[tuple[float, float]]] = {}
    for pair in pairs:
        before, after = pair["before"]["costs"], pair["after"]["costs"]
        for kind in {*before, *after}:
            costs.setdefault(kind, []).append((before.get(kind, 0.0), after.get(kind, 0.0)))
    found = []
    for kind, both in sorted(costs.items()):
        changes = [before - after for before, after in both if before != after]
        once, now = (sum(one[place] > 0 for one in both) for place in (0, 1))
        found.append(KindChange(kind, once, now, len(changes), _mean(changes) or 0.0))
    return found


def _checkpoint(name: str, rollouts: Sequence[_Rollout]) -> CheckpointChange:
    both = [(one.before, one.after) for one in rollouts if one.before is not None and one.after is not None]
    changes = [after - before for before, after in both if before != after]
    groups: dict[tuple[str | None, str], list[_Rollout]] = {}
    for one in rollouts:
        if one.group is not None:
            groups.setdefault(one.group, []).append(one)
    return CheckpointChange(
        checkpoint=name,
        rollouts=len(rollouts),
        changed=sum(one.before != one.after for one in rollouts),
        mean_change=_mean(changes) or 0.0,
        now_dropped=sum(one.before is not None and one.after is None for one in rollouts),
        no_longer_dropped=sum(one.before is None and one.after is not None for one in rollouts),
        newly_negative=sum(after < 0 <= before for before, after in both),
        groups=len(groups),
        reranked=sum(_reranked(members) for members in groups.values()),
        flipped=sum(_flipped(members) for members in groups.values()),
        mean_before=_mean([one.before for one in rollouts if one.before is not None]),
        mean_after=_mean([one.after for one in rollouts if one.after is not None]),
    )


def _reranked(members: Sequence[_Rollout]) -> bool:
    """Whether any two members that are kept in both stand in another order."""
    kept = [(one.before, one.after) for one in members if one.before is not None and one.after is not None]
    before, after = (_ranks([pair[place] for pair in kept]) for place in (0, 1))
    return before != after


def _ranks(values: Sequence[float]) -> list[int]:
    """The place of each among the different values."""
    places = {value: place for place, value in enumerate(sorted(set(values)))}
    return [places[value] for value in values]


def _flipped(members: Sequence[_Rollout]) -> int:
    """How many members' advantages have another sign."""
    means = [
        _mean([value for one in members if (value := (one.before, one.after)[place]) is not None]) or 0.0
        for place in (0, 1)
    ]
    return sum(
        _sign(one.before - means[0]) * _sign(one.after - means[1]) < 0
        for one in members
        if one.before is not None and one.after is not None
    )


def _unknown(tried: Mapping[str, Any], with_reward: int) -> list[str]:
    count = len(tried["rollouts"])
    unknown = sum(one["before"]["value"] is None for one in tried["rollouts"])
    told = [
        "Detection is as it was recorded: what no detector of then looked for, or what a threshold let pass, "
        "is not here."
    ]
    if with_reward < count:
        told.append(f"{count - with_reward} of {count} rollouts have no reward: theirs was taken as 0.")
    if unknown:
        told.append(
            f"The penalty of {unknown} rollouts was unknown then, as evidence was lost or the infrastructure "
            "failed: so is what they would have cost, unless nothing penalised needs what is missing."
        )
    if tried["skipped"]:
        told.append(
            f"{tried['skipped']} rollouts are left out: the policy that judged them is not in the store."
        )
    if tried["more"]:
        told.append("There are more rollouts than were asked for: the latest are here.")
    return told


def _in_order(item: tuple[str, Any]) -> tuple[bool, float, str]:
    """Checkpoints that are numbers by their number, then the others by name."""
    try:
        return False, float(item[0]), item[0]
    except ValueError:
        return True, 0.0, item[0]


def _csv(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open(newline="") as source:
            return list(csv.DictReader(source))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise GuardError("the rewards cannot be read", where=str(path), fix=str(error)) from error


def _parquet(path: Path) -> list[dict[str, Any]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise MissingError("Parquet needs pyarrow", fix="pip install pyarrow, or give a .csv") from error
    try:
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:
        raise GuardError("the rewards cannot be read", where=str(path), fix=str(error)) from error
    return rows


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _sign(value: float) -> int:
    return 0 if abs(value) < 1e-12 else 1 if value > 0 else -1
