"""Scores against values worked by hand, plain loops and properties."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_dynamicrubric.scoring import check_rubric_arrays, response_scores, score_gap
from tests.rubric_arrays import Arrays, rubric_arrays


def slow_scores(weights_M: Any, verdicts_MK: Any) -> list[float]:
    scores = []
    for k in range(len(verdicts_MK[0])):
        earned = 0
        for m in range(len(weights_M)):
            earned += int(weights_M[m]) * int(verdicts_MK[m][k])
        scores.append(earned / sum(int(weight) for weight in weights_M))
    return scores


def slow_gap(scores_K: Any) -> float:
    total, pairs = 0.0, 0
    for i in range(len(scores_K)):
        for j in range(i + 1, len(scores_K)):
            total += abs(scores_K[i] - scores_K[j])
            pairs += 1
    return total / pairs if pairs else 0.0


def test_the_papers_example() -> None:
    assert response_scores([5, 3, 2], [[1], [0], [1]]).tolist() == [0.7]


def test_three_responses_by_hand() -> None:
    scores_K = response_scores([1, 4], [[1, 0, 1], [0, 1, 1]])
    assert scores_K.tolist() == [0.2, 0.8, 1.0]
    assert scores_K.dtype == np.float64


def test_gap_by_hand() -> None:
    assert score_gap([0.2, 0.8, 1.0]) == pytest.approx((0.6 + 0.8 + 0.2) / 3, abs=1e-15)
    assert score_gap([0.3]) == 0.0
    assert score_gap([0.3, 0.3]) == 0.0


@given(rubric_arrays())
def test_scores_equal_plain_loops(arrays: Arrays) -> None:
    scores_K = response_scores(*arrays)
    assert scores_K.tolist() == slow_scores(*arrays)
    assert score_gap(scores_K) == pytest.approx(slow_gap(scores_K.tolist()), abs=1e-15)


@given(rubric_arrays(), st.randoms())
def test_scores_move_with_their_responses(arrays: Arrays, random: Any) -> None:
    weights_M, verdicts_MK = arrays
    order = list(range(verdicts_MK.shape[1]))
    random.shuffle(order)
    moved_K = response_scores(weights_M, verdicts_MK[:, order])
    assert moved_K.tolist() == response_scores(weights_M, verdicts_MK)[order].tolist()
    assert score_gap(moved_K) == pytest.approx(score_gap(response_scores(weights_M, verdicts_MK)), abs=1e-15)


@given(rubric_arrays(), st.randoms())
def test_order_of_items_does_not_matter(arrays: Arrays, random: Any) -> None:
    weights_M, verdicts_MK = arrays
    order = list(range(len(weights_M)))
    random.shuffle(order)
    assert response_scores(weights_M[order], verdicts_MK[order]).tolist() == response_scores(*arrays).tolist()


@given(rubric_arrays(max_weight=2))
def test_scale_of_weights_does_not_matter(arrays: Arrays) -> None:
    weights_M, verdicts_MK = arrays
    assert response_scores(2 * weights_M, verdicts_MK) == pytest.approx(response_scores(*arrays), abs=1e-15)


@given(rubric_arrays())
def test_doubling_every_item_changes_nothing(arrays: Arrays) -> None:
    weights_M, verdicts_MK = arrays
    doubled_K = response_scores(np.tile(weights_M, 2), np.tile(verdicts_MK, (2, 1)))
    assert doubled_K == pytest.approx(response_scores(*arrays), abs=1e-15)


@given(rubric_arrays())
def test_an_item_that_all_meet_or_fail_keeps_the_order(arrays: Arrays) -> None:
    weights_M, verdicts_MK = arrays
    before_K = response_scores(*arrays)
    for verdict in (0, 1):
        same_for_all = np.full((1, verdicts_MK.shape[1]), verdict)
        after_K = response_scores(np.append(weights_M, 3), np.concatenate([verdicts_MK, same_for_all]))
        share = weights_M.sum() / (weights_M.sum() + 3)
        assert np.subtract.outer(after_K, after_K) == pytest.approx(share * np.subtract.outer(before_K, before_K), abs=1e-12)


@given(rubric_arrays())
def test_scores_lie_in_the_unit_interval(arrays: Arrays) -> None:
    scores_K = response_scores(*arrays)
    assert ((scores_K >= 0) & (scores_K <= 1)).all()
    assert 0 <= score_gap(scores_K) <= 1


@given(rubric_arrays())
def test_equal_verdicts_earn_equal_scores(arrays: Arrays) -> None:
    weights_M, verdicts_MK = arrays
    twice_K = response_scores(weights_M, np.concatenate([verdicts_MK, verdicts_MK], axis=1))
    assert twice_K[: verdicts_MK.shape[1]].tolist() == twice_K[verdicts_MK.shape[1] :].tolist()


@given(rubric_arrays(min_k=2), st.data())
def test_directional_gain_is_the_score_gap(arrays: Arrays, data: st.DataObject) -> None:
    """d/d eps J(alpha + eps (e_i - e_j)) = E_i - E_j, where J(alpha) = sum_k alpha_k E_k."""
    scores_K = response_scores(*arrays)
    i, j = data.draw(st.permutations(range(len(scores_K))))[:2]
    alpha_K = np.full(len(scores_K), 1 / len(scores_K))
    eps = 1e-4
    moved_K = alpha_K.copy()
    moved_K[i] += eps
    moved_K[j] -= eps
    gain = (sum(a * s for a, s in zip(moved_K, scores_K, strict=True)) - float(alpha_K @ scores_K)) / eps
    assert gain == pytest.approx(scores_K[i] - scores_K[j], abs=1e-9)


@pytest.mark.parametrize(
    ("weights", "verdicts", "message"),
    [
        ([], [], "weights must have shape (M >= 1,), got (0,)"),
        ([[1, 2]], [[1]], "weights must have shape (M >= 1,), got (1, 2)"),
        (3, [[1]], "weights must have shape (M >= 1,), got ()"),
        ([3, 7], [[1], [1]], "weights must be whole numbers 1..5, got 7 in item 2"),
        ([0], [[1]], "weights must be whole numbers 1..5, got 0 in item 1"),
        ([-1], [[1]], "weights must be whole numbers 1..5, got -1 in item 1"),
        ([2.5], [[1]], "weights must be whole numbers 1..5, got 2.5 in item 1"),
        ([3.0000001], [[1]], "weights must be whole numbers 1..5, got 3.0000001 in item 1"),
        ([np.nan], [[1]], "weights must be whole numbers 1..5, got nan in item 1"),
        ([np.inf], [[1]], "weights must be whole numbers 1..5, got inf in item 1"),
        ([1, 2], [[1]], "verdicts must have shape (2, K >= 1), got (1, 1)"),
        ([1], [1], "verdicts must have shape (1, K >= 1), got (1,)"),
        ([1], [[]], "verdicts must have shape (1, K >= 1), got (1, 0)"),
        ([1], [[0, 2]], "verdicts must be 0 or 1, got 2; leave out items with a missing verdict"),
        ([1], [[0.5]], "verdicts must be 0 or 1, got 0.5; leave out items with a missing verdict"),
        ([1], [[1, np.nan]], "verdicts must be 0 or 1, got nan; leave out items with a missing verdict"),
    ],
)
def test_wrong_arrays_are_named(weights: Any, verdicts: Any, message: str) -> None:
    for function in (check_rubric_arrays, response_scores):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            function(weights, verdicts)


@pytest.mark.parametrize("scores", [[], [[0.1]], 0.1, [0.1, np.nan], [np.inf]])
def test_gap_of_what_is_no_group_is_refused(scores: Any) -> None:
    shown = re.escape(str(np.asarray(scores, dtype=float).tolist()))
    with pytest.raises(ValueError, match=f"^scores must be a non-empty vector of finite numbers, got {shown}$"):
        score_gap(scores)
