"""What the rubric generator is trained for: discriminability, anchor ranking, and their sum. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from openrlhf_dynamicrubric.scoring import check_rubric_arrays
from openrlhf_dynamicrubric.types import FloatArray


def discriminability(weights_M: ArrayLike, verdicts_MK: ArrayLike) -> float:
    """Weighted Bernoulli variance of a rubric's verdicts over one response set.

    R_disc = sum_m w_m vbar_m (1 - vbar_m) / sum_m w_m,  vbar_m = mean_k v_mk

    Source: DynamicRubric (arXiv:2607.20083), the discriminability objective.

    Args:
        weights_M: item weights, whole numbers 1..5, shape (M >= 1,).
        verdicts_MK: 1 where response k meets item m, else 0, shape (M, K >= 1).

    Returns:
        Unitless, in [0, 0.25]; 0 when every item passes or fails everywhere.

    Raises:
        ValueError: a shape or a range above does not hold; the message says which.

    Example:
        >>> discriminability([5], [[1, 1, 0, 0]])
        0.25
    """
    weights_M, verdicts_MK = check_rubric_arrays(weights_M, verdicts_MK)
    mean_M = verdicts_MK.mean(axis=1)
    return float(weights_M @ (mean_M * (1.0 - mean_M)) / weights_M.sum())


def anchor_ranking(scores_N: ArrayLike) -> float:
    """Log-likelihood that a rubric's scores keep the order of ranked anchors, near and high pairs first.

    R_anchor = sum_{i<j} log sigmoid(S_i - S_j) / ((j - i) 2^(i-1))

    Source: DynamicRubric (arXiv:2607.20083), the anchor ranking objective.

    Args:
        scores_N: S_i, the score of the i-th best anchor under the rubric written for (x, C), best first, shape (N >= 2,).

    Returns:
        Unitless, below 0; never below `anchor_ranking_floor(N)`, and above it for N >= 3.

    Raises:
        ValueError: fewer than two anchors, or a score outside [0, 1].

    Example:
        >>> round(anchor_ranking([0.5, 0.5, 0.5, 0.5]), 4)
        -1.9639
    """
    scores, better, worse = _anchor_pairs(scores_N)
    return _weighted_log_sigmoid(scores[better] - scores[worse], better, worse)


def anchor_accuracy(scores_N: ArrayLike) -> float:
    """Share of anchor pairs that a rubric's scores put in their order; a tie counts one half.

    accuracy = mean_{i<j} ([S_i > S_j] + [S_i = S_j] / 2)

    Source: ours; `anchor_ranking` without weights and sigmoid, for people: 0.5 is chance, 1 is the anchors' own order.

    Args:
        scores_N: S_i, the score of the i-th best anchor, best first, shape (N >= 2,).

    Returns:
        In [0, 1].

    Raises:
        ValueError: fewer than two anchors, or a score outside [0, 1].

    Example:
        >>> anchor_accuracy([1.0, 0.5, 0.5])
        0.8333333333333334
    """
    scores, better, worse = _anchor_pairs(scores_N)
    gaps = scores[better] - scores[worse]
    return float(((gaps > 0) + 0.5 * (gaps == 0)).mean())


def _anchor_pairs(scores_N: ArrayLike) -> tuple[FloatArray, np.ndarray, np.ndarray]:
    scores = np.asarray(scores_N, dtype=np.float64)
    if scores.ndim != 1 or scores.size < 2:
        raise ValueError(f"anchor ranking needs the scores of at least 2 anchors, got shape {scores.shape}")
    if not ((scores >= 0) & (scores <= 1)).all():
        raise ValueError(f"anchor scores must lie in [0, 1], got {scores.tolist()}")
    return scores, *np.triu_indices(scores.size, k=1)


def anchor_ranking_floor(n: int) -> float:
    """What an invalid rubric earns in anchor ranking: the bound that no valid one falls below.

    sum_{i<j} log sigmoid(-1) / ((j - i) 2^(i-1))

    Source: ours; the paper does not say what an invalid rubric earns. Scores lie in [0, 1], so that no pair is below -1,
    and for n >= 3 not all pairs can be at -1 at once. For n = 2 a rubric that ranks worst above best exactly is as low.

    Args:
        n: number of ranked anchors, at least 2.

    Returns:
        Unitless, below 0.

    Raises:
        ValueError: n < 2.

    Example:
        >>> round(anchor_ranking_floor(4), 4)
        -3.7209
    """
    if n < 2:
        raise ValueError(f"anchor ranking needs at least 2 anchors, got {n}")
    better, worse = np.triu_indices(n, k=1)
    return _weighted_log_sigmoid(np.full(better.size, -1.0), better, worse)


def _weighted_log_sigmoid(gaps: FloatArray, better: np.ndarray, worse: np.ndarray) -> float:
    # Ranks count from 0 here, so that the paper's 2^(i-1) is 2^better.
    weights = 1.0 / ((worse - better) * np.exp2(better.astype(np.float64)))
    return float(weights @ -np.logaddexp(0.0, -gaps))


def standardise(values_G: ArrayLike, *, std_floor: float = 0.0, eps: float = 1e-4) -> FloatArray:
    """Values of one group, centred and divided by their standard deviation.

    z_g(v) = (v - mean v) / (max(std v, std_floor) + eps)

    Source: GRPO's group advantage, with the sample standard deviation (divisor G - 1) and eps that TRL and OpenRLHF use.
    Ours: the floor, which keeps rubrics that differ by next to nothing from getting full-size advantages.

    Args:
        values_G: rewards of one group, shape (G,); NaN marks a member without reward.
        std_floor: smallest standard deviation to divide by, in the unit of the values, at least 0.
        eps: added to the divisor, above 0.

    Returns:
        Unitless, shape (G,), mean 0 over the members with a reward; NaN where the input is NaN; 0 where all are equal.

    Raises:
        ValueError: not a vector, infinite values, a negative floor, or an eps that is not above 0.

    Example:
        >>> standardise([1.0, 1.0, 1.0]).tolist()
        [0.0, 0.0, 0.0]
    """
    values = np.asarray(values_G, dtype=np.float64)
    if values.ndim != 1 or np.isinf(values).any():
        raise ValueError(f"group values must be a vector without infinities, got {values.tolist()}")
    if not 0 <= std_floor < np.inf:
        raise ValueError(f"std_floor must be a number of at least 0, got {std_floor}")
    if not 0 < eps < np.inf:
        raise ValueError(f"eps must be a number above 0, got {eps}")
    known = values[~np.isnan(values)]
    if known.size == 0:
        return values.copy()
    if np.ptp(known) == 0:  # a mean can round off equal values and make noise of them
        return values - known[0]
    return (values - known.mean()) / (max(float(known.std(ddof=1)), std_floor) + eps)


def combine_advantages(
    disc_G: ArrayLike, anchor_G: ArrayLike, *, anchor_weight: float = 1.0, std_floor: float = 0.0
) -> FloatArray:
    """Advantages of the rubrics sampled for one (x, C).

    A_g = z_g(R_disc) + lambda z_g(R_anchor)

    Source: DynamicRubric (arXiv:2607.20083), the generator's objective; lambda = 1 in the paper.

    Args:
        disc_G: R_disc of each rubric, shape (G,); NaN where the rubric could not be judged.
        anchor_G: R_anchor of each rubric, shape (G,); NaN at the same places.
        anchor_weight: lambda, at least 0; 0 is the ablation without anchors.
        std_floor: see `standardise`.

    Returns:
        Unitless, shape (G,); NaN where the inputs are.

    Raises:
        ValueError: shapes differ, NaN in one input only, or a negative lambda.

    Example:
        >>> combine_advantages([0.25, 0.0], [-1.0, -1.0]).round(2).tolist()
        [0.71, -0.71]
    """
    disc, anchor = np.asarray(disc_G, dtype=np.float64), np.asarray(anchor_G, dtype=np.float64)
    if disc.shape != anchor.shape:
        raise ValueError(f"one disc and one anchor reward a rubric, got shapes {disc.shape} and {anchor.shape}")
    if (np.isnan(disc) != np.isnan(anchor)).any():
        raise ValueError("a rubric without one of the two rewards has neither: NaN must stand in both")
    if not 0 <= anchor_weight < np.inf:
        raise ValueError(f"anchor_weight must be a number of at least 0, got {anchor_weight}")
    return standardise(disc, std_floor=std_floor) + anchor_weight * standardise(anchor, std_floor=std_floor)
