"""How a reward and a penalty become one reward, or none, whichever trainer asks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from invigilator.guard.answers import RolloutPenalty
from invigilator.guard.client import PenaltyClient, PenaltyUnavailableError, TooManyUnknownError
from invigilator.guard.trainers import openrlhf, skyrl, trl, verl
from invigilator.guard.trainers.core import CannotMaskError, Judge, NoRolloutIdError


def verdict(name: str, value: float | None, **changes: Any) -> RolloutPenalty:
    fields = {"status": "final", "drop": value is None, **changes}
    return RolloutPenalty(rollout_id=name, value=value, **fields)


VERDICTS = {
    one.rollout_id: one
    for one in (
        verdict("clean", 0.0),
        verdict("cheat", -2.0, by_step={"a": -0.5, "b": -1.0}),
        verdict("bound", -1.0, bound=True, status="partial"),
        verdict("flood", -0.1, drop=True),
        verdict("partial", None, status="partial"),
        verdict("failed", None, status="failed"),
        verdict("absent", None, status="unavailable"),
    )
}


class Answers(PenaltyClient):
    """A client that knows VERDICTS, and counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9")
        self.asked: list[list[str]] = []

    def batch(self, rollout_ids: Sequence[str], **how: Any) -> list[RolloutPenalty]:
        self.asked.append(list(rollout_ids))
        found = [VERDICTS.get(one) or verdict(one, 0.0) for one in rollout_ids]
        if how["on_unavailable"] == "raise" and any(one.status == "unavailable" for one in found):
            raise PenaltyUnavailableError("no verdict", rollout_ids)
        return found

    async def batch_async(self, rollout_ids: Sequence[str], **how: Any) -> list[RolloutPenalty]:
        return self.batch(rollout_ids, **how)


def judge(**how: Any) -> Judge:
    return Judge(**{"client": Answers(), "on_unavailable": "none", "max_unknown": None, **how})


def rewards(one: Judge) -> dict[str, float | None]:
    return {name: one.combine(1.0, found) for name, found in VERDICTS.items()}


NOT_KNOWN = {"flood": None, "partial": None, "failed": None, "absent": None}


def test_a_penalty_is_weighed_and_added() -> None:
    assert rewards(judge(weight=0.5)) == {"clean": 1.0, "cheat": 0.0, "bound": 0.5, **NOT_KNOWN}


def test_screening_masks_what_cost_anything() -> None:
    assert rewards(judge(mode="screening")) == {"clean": 1.0, "cheat": None, "bound": None, **NOT_KNOWN}


@pytest.mark.parametrize("reward", [None, float("nan")])
def test_what_the_task_did_not_score_is_no_zero(reward: float | None) -> None:
    assert judge().combine(reward, VERDICTS["clean"]) is None


def test_an_infinite_reward_is_refused() -> None:
    with pytest.raises(ValueError, match="infinite"):
        judge().combine(float("inf"), VERDICTS["cheat"])


def test_steps_are_charged_the_whole_and_the_last_one_what_belongs_to_none() -> None:
    assert judge().steps(VERDICTS["cheat"], ["a", "b", "c"]) == [-0.5, -1.0, -0.5]
    assert judge().steps(VERDICTS["cheat"], ["x"]) == [-2.0]
    assert judge(mode="screening").steps(VERDICTS["cheat"], ["a", "b"]) == [0.0, 0.0]


def test_what_has_no_verdict_raises_by_default() -> None:
    with pytest.raises(PenaltyUnavailableError):
        Judge(client=Answers()).adjust([1.0, 1.0], ["clean", "absent"])


def test_unknown_ones_asked_for_one_by_one_are_counted_together() -> None:
    one = judge(max_unknown=0.05)
    for _ in range(5):
        one.adjust([1.0], ["partial"])
    with pytest.raises(TooManyUnknownError, match="6 of the last 6"):
        one.adjust([1.0], ["partial"])


def test_rollouts_asked_for_together_are_one_request() -> None:
    one = judge()

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(one.adjust_async([1.0], [name]) for name in VERDICTS))

    found = {each[0].penalty.rollout_id: each[0].reward for each in asyncio.run(all_of_them())}
    assert found == rewards(one)
    assert one.client.asked == [list(VERDICTS)]  # type: ignore[attr-defined]
    assert asyncio.run(all_of_them()), "another event loop"


def solved(*, completions: Sequence[str], **_: Any) -> list[float | None]:
    return [1.0] * len(completions)


def not_applicable(*, completions: Sequence[str], **_: Any) -> list[float | None]:
    return [None] * len(completions)


async def slow(*, completions: Sequence[str], **_: Any) -> list[float | None]:
    return [0.5] * len(completions)


def asked(function: Any, **columns: Any) -> Any:
    names = list(VERDICTS)
    return function(prompts=names, completions=names, **{"rollout_id": names, **columns})


def test_trl_gets_none_for_a_dropped_row_whatever_the_task_says() -> None:
    logged: dict[str, float] = {}
    found = asked(trl.guarded([solved, not_applicable], judge()), log_metric=logged.__setitem__)
    assert found == list(rewards(judge()).values())
    assert logged["guard/masked"] == pytest.approx(4 / 7)


def test_trl_adds_no_penalty_to_rows_that_no_function_scored() -> None:
    assert asked(trl.guarded([not_applicable], judge())) == [None] * 7


def test_trl_waits_for_a_task_that_is_async() -> None:
    function = trl.guarded([solved, slow], judge(), weights=[2.0, 1.0])
    assert asyncio.iscoroutinefunction(function)
    assert asyncio.run(asked(function))[:3] == [2.5, 0.5, 1.5]


def test_trl_without_the_column_says_what_there_is() -> None:
    with pytest.raises(NoRolloutIdError, match="there are: task"):
        trl.guarded([solved], judge())(prompts=["p"], completions=["c"], task=["t"])


class Trainer:
    """What `trl.check` looks at."""

    def __init__(self, *functions: Any, beta: float = 0.0) -> None:
        self.reward_funcs = functions
        self.args: Any = type(
            "Args", (), {"beta": beta, "multi_objective_aggregation": "sum_then_normalize"}
        )()


def test_trl_s_check_refuses_what_would_train_on_dropped_rows() -> None:
    whole = trl.guarded([solved], judge())
    trl.check(Trainer(whole))
    for refused in (Trainer(whole, solved), Trainer(solved), Trainer(whole, whole), Trainer(whole, beta=0.1)):
        with pytest.raises(CannotMaskError):
            trl.check(refused)


def score(name: str, **how: Any) -> Any:
    function = verl.guarded(lambda **_: {"score": 1.0, "acc": 1.0}, judge(), **how)
    return asyncio.run(function("mine", "text", "truth", {"rollout_id": name}))


def test_verl_s_score_is_nan_for_a_dropped_rollout_and_raises_without_a_mask() -> None:
    assert score("cheat") == {"score": -1.0, "acc": 1.0, "task_score": 1.0, "penalty": -2.0, "dropped": 0.0}
    told = score("partial", masks=True)
    assert told["score"] != told["score"] and told["dropped"] == 1.0
    with pytest.raises(CannotMaskError, match="counts all rows"):
        score("flood")
    with pytest.raises(NoRolloutIdError):
        asyncio.run(verl.guarded(lambda **_: 1.0, judge())("mine", "text", "truth", {}))


class Settings(dict[str, Any]):
    """A configuration of verl's: by name and by key."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


def configured(estimator: str = "invigilator_grpo", manager: str = "naive", **actor: Any) -> Settings:
    v1 = actor.pop("v1", True)
    return Settings(
        algorithm=Settings(adv_estimator=estimator),
        reward=Settings(reward_manager=Settings(name=manager)),
        actor_rollout_ref=Settings(actor=Settings(actor)),
        trainer=Settings(use_v1=v1),
    )


def test_verl_s_check_refuses_what_would_train_on_dropped_rows() -> None:
    verl.check(configured())
    verl.check(configured(use_kl_loss=True, v1=False))
    for refused in (
        configured("grpo"),
        configured(manager="rate_limited"),
        configured(use_kl_loss=True),
        configured(entropy_coeff=0.01),
    ):
        with pytest.raises(CannotMaskError):
            verl.check(refused)
    with pytest.raises(CannotMaskError, match="gae"):
        verl.install("gae")


def test_openrlhf_and_skyrl_raise_for_what_they_cannot_mask() -> None:
    def mine(queries: Any, prompts: Any, labels: Sequence[str]) -> dict[str, Any]:
        return {"rewards": [1.0] * len(labels), "scores": [1.0] * len(labels)}

    function = openrlhf.guarded(mine, judge(), id_of=str)
    found = function([], [], ["clean", "cheat"])
    assert (found["rewards"], found["scores"]) == ([1.0, -1.0], [1.0, 1.0])
    with pytest.raises(CannotMaskError):
        function([], [], ["clean", "flood"])

    class Env:
        """An environment whose every step is the last."""

        def __init__(self, name: str) -> None:
            self.rollout_id = name

        def step(self, action: str) -> dict[str, Any]:
            return {"reward": 1.0, "done": True, "metadata": {}}

    last = skyrl.GuardedEnv(Env("cheat"), judge()).step("x")
    assert last["reward"] == -1.0
    assert last["metadata"]["invigilator"]["by_step"] == {"a": -0.5, "b": -1.0}
    with pytest.raises(CannotMaskError):
        skyrl.GuardedEnv(Env("failed"), judge()).step("x")
