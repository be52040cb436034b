"""Numbers that tell whether the signal lives, from the outcomes of one step. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openrlhf_dynamicrubric.scoring import score_gap
from openrlhf_dynamicrubric.types import Evaluation, Unscorable, Usage

PREFIX = "dynamicrubric/"


def group_metrics(outcomes: Sequence[Evaluation | Unscorable], *, seconds: float) -> dict[str, float]:
    """Metrics of the groups scored in one step, by the names that both frameworks log.

    Args:
        outcomes: the groups.
        seconds: wall time that scoring took, in seconds.

    Returns:
        score_gap: mean over groups of the mean |E_i - E_j|. zero_variance_groups: share of scored groups with equal scores.
        saturated_items: share of items that all responses met, or none. items_per_rubric: mean.
        invalid_rubrics: share of attempts that gave no valid rubric. failed_verdicts: count. unscorable_groups: share.
        score_length_correlation: mean over groups of Pearson's r between score and characters, where both vary.
        generator_tokens, verifier_tokens, cached_verdicts: sums. seconds.
        A metric that the step says nothing about (no scored group, say) is absent, never a made-up number.
    """
    scored = [outcome for outcome in outcomes if isinstance(outcome, Evaluation)]
    metrics: dict[str, float] = {
        "failed_verdicts": float(sum(outcome.failed_verdicts for outcome in outcomes)),
        "cached_verdicts": float(sum(outcome.cached_verdicts for outcome in outcomes)),
        "generator_tokens": float(sum((_generator_usage(o) for o in outcomes), Usage()).tokens),
        "verifier_tokens": float(sum((o.verifier_usage for o in outcomes), Usage()).tokens),
        "seconds": seconds,
    }
    if outcomes:
        metrics["unscorable_groups"] = 1.0 - len(scored) / len(outcomes)
    rejected = sum(len(_rejected(outcome)) for outcome in outcomes)
    attempts = rejected + sum(1 for outcome in outcomes if outcome.written)
    if attempts:
        metrics["invalid_rubrics"] = rejected / attempts
    if scored:
        means = np.concatenate([outcome.verdicts_MK.mean(axis=1) for outcome in scored])
        metrics["score_gap"] = float(np.mean([score_gap(outcome.scores_K) for outcome in scored]))
        metrics["zero_variance_groups"] = float(np.mean([np.ptp(outcome.scores_K) == 0 for outcome in scored]))
        metrics["saturated_items"] = float(np.mean((means == 0) | (means == 1)))
        metrics["items_per_rubric"] = float(np.mean([len(outcome.rubric.items) for outcome in scored]))
    correlations = [r for outcome in scored if (r := _length_correlation(outcome)) is not None]
    if correlations:
        metrics["score_length_correlation"] = float(np.mean(correlations))
    return {PREFIX + name: value for name, value in metrics.items()}


def _generator_usage(outcome: Evaluation | Unscorable) -> Usage:
    if isinstance(outcome, Unscorable):
        return outcome.generator_usage
    return outcome.written.usage if outcome.written else Usage()


def _rejected(outcome: Evaluation | Unscorable) -> tuple[str, ...]:
    if isinstance(outcome, Unscorable):
        return outcome.rejected
    return outcome.written.rejected if outcome.written else ()


def _length_correlation(outcome: Evaluation) -> float | None:
    lengths_K = np.array([len(text) for text in outcome.response_set.responses], dtype=np.float64)
    if np.ptp(lengths_K) == 0 or np.ptp(outcome.scores_K) == 0:
        return None
    return float(np.corrcoef(lengths_K, outcome.scores_K)[0, 1])
