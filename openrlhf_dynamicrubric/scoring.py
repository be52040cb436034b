"""Verdicts to scores, and scores to score gaps. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from openrlhf_dynamicrubric.types import FloatArray


def check_rubric_arrays(weights_M: ArrayLike, verdicts_MK: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Weights and verdicts as float arrays, once they are what the formulas need.

    Args:
        weights_M: item weights, whole numbers 1..5, shape (M >= 1,).
        verdicts_MK: 1 where response k meets item m, else 0, shape (M, K >= 1).

    Returns:
        Both, as float64.

    Raises:
        ValueError: a shape or a range above does not hold; the message says which.
    """
    weights = np.asarray(weights_M, dtype=np.float64)
    verdicts = np.asarray(verdicts_MK, dtype=np.float64)
    if weights.ndim != 1 or weights.size == 0:
        raise ValueError(f"weights must have shape (M >= 1,), got {weights.shape}")
    for item, weight in enumerate(weights, start=1):
        if weight not in (1, 2, 3, 4, 5):
            raise ValueError(f"weights must be whole numbers 1..5, got {weight:.12g} in item {item}")
    if verdicts.ndim != 2 or verdicts.shape[0] != weights.size or verdicts.shape[1] == 0:
        raise ValueError(f"verdicts must have shape ({weights.size}, K >= 1), got {verdicts.shape}")
    wrong = verdicts[~np.isin(verdicts, (0.0, 1.0))]
    if wrong.size:
        raise ValueError(f"verdicts must be 0 or 1, got {wrong[0]:.12g}; leave out items with a missing verdict")
    return weights, verdicts


def response_scores(weights_M: ArrayLike, verdicts_MK: ArrayLike) -> FloatArray:
    """Share of a rubric's weight that each response earns.

    E(x, y_k | C) = sum_m w_m v_mk / sum_m w_m

    Source: DynamicRubric (arXiv:2607.20083), the rubric score.

    Args:
        weights_M: item weights, whole numbers 1..5, shape (M >= 1,).
        verdicts_MK: 1 where response k meets item m, else 0, shape (M, K >= 1).

    Returns:
        Scores in [0, 1], shape (K,); comparable under the same rubric only.

    Raises:
        ValueError: a shape or a range above does not hold; the message says which.

    Example:
        >>> response_scores([5, 3, 2], [[1], [0], [1]]).tolist()
        [0.7]
    """
    weights_M, verdicts_MK = check_rubric_arrays(weights_M, verdicts_MK)
    return weights_M @ verdicts_MK / weights_M.sum()


def score_gap(scores_K: ArrayLike) -> float:
    """Mean absolute difference of the scores over all pairs of responses.

    gap = mean_{i<j} |E_i - E_j|

    Source: the directional gain of DynamicRubric (arXiv:2607.20083): moving policy mass from y_j to y_i gains E_i - E_j,
    so that this mean is the signal a group offers.

    Args:
        scores_K: scores of one group, shape (K >= 1,), finite.

    Returns:
        In the unit of the scores; 0 for a single response.

    Raises:
        ValueError: not a non-empty vector of finite numbers.

    Example:
        >>> score_gap([1.0, 0.5, 0.0])
        0.6666666666666666
    """
    scores = np.asarray(scores_K, dtype=np.float64)
    if scores.ndim != 1 or scores.size == 0 or not np.isfinite(scores).all():
        raise ValueError(f"scores must be a non-empty vector of finite numbers, got {scores.tolist()}")
    if scores.size == 1:
        return 0.0
    first, second = np.triu_indices(scores.size, k=1)
    return float(np.abs(scores[first] - scores[second]).mean())
