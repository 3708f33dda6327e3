"""Inspect: a scorer around a task's own, and edits of scores in a log that say who made them and why.

    @task
    def mine(): return Task(…, scorer=guarded(match(), Judge()))

    log = read_eval_log(path); edit_log(log, "match", Judge()); write_eval_log(log)

A dropped sample is unscored (`Score.unscored`, NaN), which Inspect's metrics and reducers leave out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from invigilator.guard.errors import GuardError
from invigilator.guard.trainers.core import Adjusted, Judge

KEY = "rollout_id"
AUTHOR = "invigilator"


def guarded(scorer: Callable[..., Awaitable[Any]], judge: Judge, *, key: str = KEY) -> Any:
    """A scorer: `scorer`'s value as a number, less the penalty. The id is `state.metadata[key]`."""
    from inspect_ai.scorer import Score, Target, mean, stderr
    from inspect_ai.scorer import scorer as registered
    from inspect_ai.solver import TaskState

    @registered(metrics=[mean(), stderr()], name=AUTHOR)  # type: ignore[untyped-decorator, unused-ignore]
    def with_penalty() -> Any:
        async def score(state: TaskState, target: Target) -> Score | None:
            found = await scorer(state, target)
            if found is None:
                return None
            rollout = _id_of(state.metadata, key)
            one = (await judge.adjust_async([_number(found)], [rollout]))[0]
            metadata = {**(found.metadata or {}), AUTHOR: told(one)}
            if one.reward is None:
                reason = "invigilator_dropped" if one.dropped else found.reason
                explanation = one.why if one.dropped else found.explanation
                return Score.unscored(
                    reason=reason, answer=found.answer, explanation=explanation, metadata=metadata
                )
            return found.model_copy(update={"value": one.reward, "metadata": metadata})

        return score

    return with_penalty()


def edit_log(log: Any, score_name: str, judge: Judge, *, key: str = KEY) -> int:
    """Take penalties off the scores that a log has, in place; the number of samples edited. The value before
    stays in the score's history, with who edited it, when, and by which versions."""
    from inspect_ai.log import ProvenanceData, edit_score
    from inspect_ai.scorer import ScoreEdit

    samples = [one for one in log.samples or [] if score_name in (one.scores or {})]
    rewards = [_number(one.scores[score_name]) for one in samples]
    judged = judge.adjust(rewards, [_id_of(one.metadata, key) for one in samples])
    edited = 0
    for sample, one, before in zip(samples, judged, rewards, strict=True):
        if one.reward == before or (one.reward is None and not one.dropped):
            continue
        why = one.why if one.reward is None else "; ".join(part.text for part in one.penalty.reasons)
        score = sample.scores[score_name]
        edit = ScoreEdit(
            value=float("nan") if one.reward is None else one.reward,
            reason="invigilator_dropped" if one.reward is None else "UNCHANGED",
            metadata={**(score.metadata or {}), AUTHOR: told(one)},
            provenance=ProvenanceData(author=AUTHOR, reason=why, metadata=told(one)),
        )
        edit_score(log, sample.id, score_name, edit, recompute_metrics=False, epoch=sample.epoch)
        edited += 1
    if edited:
        from inspect_ai.log import recompute_metrics

        recompute_metrics(log)
    return edited


def told(one: Adjusted) -> dict[str, Any]:
    """What a score says of the verdict."""
    verdict = one.penalty
    return {
        "rollout_id": verdict.rollout_id, "value": verdict.value, "dropped": one.dropped,
        "bound": verdict.bound, "status": verdict.status, "revision": verdict.revision,
        "by_step": dict(verdict.by_step),
        "kinds": [reason.kind for reason in verdict.reasons],
        "penalty_version": verdict.versions.penalty if verdict.versions else None,
    }  # fmt: skip


def _number(score: Any) -> float:
    from inspect_ai.scorer import value_to_float

    return float(value_to_float()(score.value))


def _id_of(metadata: Mapping[str, Any] | None, key: str) -> str:
    found = (metadata or {}).get(key)
    if not isinstance(found, str) or not found:
        raise GuardError(
            f"the sample's metadata has no {key!r}", fix="write it where the solver makes the sandbox"
        )
    return found
