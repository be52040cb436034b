"""Sampled rubrics to what they earn: read, judged on responses and anchors, rewarded, recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np

from openrlhf_dynamicrubric import objectives, scoring
from openrlhf_dynamicrubric.errors import RubricParseError
from openrlhf_dynamicrubric.generator import read_rubric
from openrlhf_dynamicrubric.llm.base import Completion
from openrlhf_dynamicrubric.metrics import PREFIX
from openrlhf_dynamicrubric.records import usage_record
from openrlhf_dynamicrubric.types import FloatArray, ResponseSet, Rubric, RubricItem, Usage
from openrlhf_dynamicrubric.verifier import Verifier


@dataclass(frozen=True, slots=True, eq=False)
class SampledRubric:
    """One rubric that the generator sampled in training, and what became of it.

    Args:
        response_set: x, C and anchors, as judges see them.
        text: the generator's own text.
        rubric: the items; after judging those that count. None where the text is no valid rubric.
        invalid: why it is not valid; empty where it is.
        outage: why a valid rubric could not be judged; empty where it could.
        probabilities_MR: P(yes) on the K responses, then on the N anchors, shape (M, K + N); None before judging.
        verdicts_MR: 1 where the probability reaches the threshold, same shape.
        dropped: items left out because a verdict on them was missing.
        failed_verdicts: verdicts whose call failed.
        asked: verdicts asked of the model. What rubrics of one group share stands with the first of them.
        usage: their cost, likewise.
    """

    response_set: ResponseSet
    text: str
    rubric: Rubric | None = None
    invalid: str = ""
    outage: str = ""
    probabilities_MR: FloatArray | None = None
    verdicts_MR: FloatArray | None = None
    dropped: tuple[RubricItem, ...] = ()
    failed_verdicts: int = 0
    asked: int = 0
    usage: Usage = field(default_factory=Usage)

    @property
    def scores_R(self) -> FloatArray | None:
        """E of the K responses, then of the N anchors; None where there are no verdicts."""
        if self.rubric is None or self.verdicts_MR is None:
            return None
        return scoring.response_scores(self.rubric.weights_M, self.verdicts_MR)

    @property
    def disc(self) -> float:
        """R_disc: 0 for an invalid rubric, NaN for one that could not be judged."""
        if self.invalid:
            return 0.0
        if self.rubric is None or self.verdicts_MR is None:
            return float("nan")
        return objectives.discriminability(self.rubric.weights_M, self.verdicts_MR[:, : len(self.response_set.responses)])

    @property
    def anchor(self) -> float:
        """R_anchor: the floor for an invalid rubric, NaN for one that could not be judged."""
        if self.invalid:
            return objectives.anchor_ranking_floor(len(self.response_set.anchors))
        scores_R = self.scores_R
        if scores_R is None:
            return float("nan")
        return objectives.anchor_ranking(scores_R[len(self.response_set.responses) :])


def read_sampled(response_set: ResponseSet, text: str, *, tokens: int, ended: bool, max_items: int) -> SampledRubric:
    """What the generator wrote, as a rubric or with the reason why it is none.

    Args:
        response_set: what it was written for.
        text: without special tokens.
        tokens: its length, in tokens.
        ended: the model ended it by itself.
        max_items: most items.
    """
    completion = Completion(text, "stop" if ended else "length", Usage(calls=1, completion_tokens=tokens))
    try:
        return SampledRubric(response_set, text, read_rubric(completion, max_items=max_items))
    except RubricParseError as error:
        return SampledRubric(response_set, text, invalid=str(error))


async def judge_sampled(
    sampled: Sequence[SampledRubric], verifier: Verifier, *, verdict_threshold: float
) -> list[SampledRubric]:
    """The rubrics with their verdicts; neighbours with the same response set share their questions.

    An item with a missing verdict is left out and the weights of the others count alone, as in policy scoring.

    Args:
        sampled: rubrics as `read_sampled` gave them.
        verifier: DR-Verifier.
        verdict_threshold: a verdict is yes from this P(yes) on.

    Returns:
        One a rubric, in order; invalid ones as they were.
    """
    groups = [list(group) for _, group in groupby(sampled, key=lambda one: one.response_set)]
    judged = await asyncio.gather(*(_judge_group(group, verifier, verdict_threshold) for group in groups))
    return [one for group in judged for one in group]


async def _judge_group(group: Sequence[SampledRubric], verifier: Verifier, threshold: float) -> list[SampledRubric]:
    criteria = list(dict.fromkeys(criterion for one in group if one.rubric for criterion in one.rubric.criteria))
    if not criteria:
        return list(group)
    response_set = group[0].response_set
    matrix = await verifier.verdicts(response_set.prompt, response_set.responses + response_set.anchors, criteria)
    row_of = {criterion: row for criterion, row in zip(criteria, matrix.probabilities_MK, strict=True)}
    reason = str(matrix.failures[0]) if matrix.failures else ""
    judged = [one if one.rubric is None else _with_verdicts(one, one.rubric, row_of, threshold, reason) for one in group]
    first = next(index for index, one in enumerate(group) if one.rubric)
    judged[first] = replace(judged[first], asked=matrix.asked, usage=matrix.usage)
    return judged


def _with_verdicts(
    one: SampledRubric, rubric: Rubric, row_of: dict[str, FloatArray], threshold: float, reason: str
) -> SampledRubric:
    probabilities_MR = np.stack([row_of[criterion] for criterion in rubric.criteria])
    missing_MR = np.isnan(probabilities_MR)
    whole_M = (missing_MR.sum(axis=1) == 0).tolist()
    failed = int(missing_MR.sum())
    if not any(whole_M):
        return replace(one, outage=f"no item has all its verdicts; {reason}", failed_verdicts=failed)
    kept = probabilities_MR[whole_M]
    return replace(
        one,
        rubric=Rubric(tuple(item for item, whole in zip(rubric.items, whole_M, strict=True) if whole)),
        probabilities_MR=kept,
        verdicts_MR=(kept >= threshold).astype(np.float64),
        dropped=tuple(item for item, whole in zip(rubric.items, whole_M, strict=True) if not whole),
        failed_verdicts=failed,
    )


def reward_columns(
    disc: FloatArray, anchor: FloatArray, *, size: int, anchor_weight: float, use_discriminability: bool, std_floor: float
) -> FloatArray:
    """The two terms of each rubric's advantage, standardised inside its group.

    A_g = z_g(R_disc) + lambda z_g(R_anchor)

    Source: DynamicRubric (arXiv:2607.20083), the generator's objective; `objectives.combine_advantages` is their sum.

    Args:
        disc: R_disc, shape (rubrics,), groups one after another; NaN where a rubric could not be judged.
        anchor: R_anchor, likewise.
        size: G, rubrics a group.
        anchor_weight: lambda; 0 is the ablation without anchors.
        use_discriminability: False is the ablation without R_disc.
        std_floor: see `objectives.standardise`.

    Returns:
        Shape (rubrics, 2); NaN where the inputs are.
    """
    weights = (1.0 if use_discriminability else 0.0, anchor_weight)
    columns = [
        np.concatenate([weight * objectives.standardise(group, std_floor=std_floor) for group in raw.reshape(-1, size)])
        for raw, weight in zip((disc, anchor), weights, strict=True)
    ]
    return np.stack(columns, axis=1)


def rubric_metrics(sampled: Sequence[SampledRubric], *, size: int, seconds: float) -> dict[str, float]:
    """Metrics of the rubrics sampled in one step.

    Args:
        sampled: judged rubrics of all ranks, groups one after another.
        size: G, rubrics a group.
        seconds: wall time that judging took, in seconds.

    Returns:
        disc, anchor: mean rewards of the rubrics that have them. anchor_accuracy: mean share of anchor pairs in their order.
        invalid_rubrics: share. items_per_rubric: mean. saturated_items: share of items that all responses met, or none.
        item_diversity: distinct criteria to criteria in a group, mean. unscorable_groups: share of groups without a judged
        rubric. failed_verdicts, cached_verdicts, verifier_tokens: sums. seconds.
        A metric that the step says nothing about is absent.
    """
    groups = [sampled[start : start + size] for start in range(0, len(sampled), size)]
    judged = [one for one in sampled if one.verdicts_MR is not None]
    wanted = sum(len(one.rubric.items) * _texts(one) for one in sampled if one.rubric) + sum(
        len(one.dropped) * _texts(one) for one in sampled
    )
    metrics = {
        "invalid_rubrics": sum(bool(one.invalid) for one in sampled) / len(sampled),
        "unscorable_groups": sum(all(one.verdicts_MR is None for one in group) for group in groups) / len(groups),
        "failed_verdicts": float(sum(one.failed_verdicts for one in sampled)),
        "cached_verdicts": float(wanted - sum(one.asked for one in sampled)),
        "verifier_tokens": float(sum((one.usage for one in sampled), Usage()).tokens),
        "seconds": seconds,
    }
    rewarded = [one for one in sampled if not np.isnan(one.disc)]
    if rewarded:
        metrics["disc"] = float(np.mean([one.disc for one in rewarded]))
        metrics["anchor"] = float(np.mean([one.anchor for one in rewarded]))
    if judged:
        accuracies, saturated, counts = zip(*(_figures(one) for one in judged), strict=True)
        metrics["anchor_accuracy"] = float(np.mean(accuracies))
        metrics["saturated_items"] = sum(saturated) / sum(counts)
        metrics["items_per_rubric"] = float(np.mean(counts))
    diversities = [diversity for group in groups if (diversity := _diversity(group)) is not None]
    if diversities:
        metrics["item_diversity"] = float(np.mean(diversities))
    return {PREFIX + name: value for name, value in metrics.items()}


def _texts(one: SampledRubric) -> int:
    return len(one.response_set.responses) + len(one.response_set.anchors)


def _figures(one: SampledRubric) -> tuple[float, int, int]:
    """Anchor accuracy, saturated items and items of a judged rubric."""
    assert one.scores_R is not None
    assert one.verdicts_MR is not None
    responses = len(one.response_set.responses)
    means_M = one.verdicts_MR[:, :responses].mean(axis=1)
    saturated = int(((means_M == 0) | (means_M == 1)).sum())
    return objectives.anchor_accuracy(one.scores_R[responses:]), saturated, len(means_M)


def _diversity(group: Sequence[SampledRubric]) -> float | None:
    criteria = [" ".join(item.casefold().split()).rstrip(".") for one in group if one.rubric for item in one.rubric.criteria]
    return len(set(criteria)) / len(criteria) if criteria else None


def rubric_record(one: SampledRubric, *, member: int, advantage: float, mode: str) -> dict[str, Any]:
    """One sampled rubric for the audit trail. See docs/records.md for every key."""
    responses = len(one.response_set.responses)
    judged = one.probabilities_MR is not None and one.verdicts_MR is not None
    verdicts = one.verdicts_MR.astype(int) if one.verdicts_MR is not None else np.zeros((0, 0), dtype=int)
    probabilities = one.probabilities_MR.round(6) if one.probabilities_MR is not None else np.zeros((0, 0))
    scores = one.scores_R
    return {
        "kind": "rubric",
        "id": one.response_set.id,
        "member": member,
        "mode": mode,
        "rubric_text": one.text,
        "invalid": one.invalid or None,
        "outage": one.outage or None,
        "items": [{"criterion": item.criterion, "weight": item.weight} for item in one.rubric.items] if one.rubric else [],
        "dropped": [{"criterion": item.criterion, "weight": item.weight} for item in one.dropped],
        "verdicts": verdicts[:, :responses].tolist() if judged else None,
        "anchor_verdicts": verdicts[:, responses:].tolist() if judged else None,
        "probabilities": probabilities[:, :responses].tolist() if judged else None,
        "anchor_probabilities": probabilities[:, responses:].tolist() if judged else None,
        "scores": scores[:responses].tolist() if scores is not None else None,
        "anchor_scores": scores[responses:].tolist() if scores is not None else None,
        "disc": _number(one.disc),
        "anchor": _number(one.anchor),
        "advantage": _number(advantage),
        "failed_verdicts": one.failed_verdicts,
        "verifier_usage": usage_record(one.usage),
    }


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
