"""The generator's rewards against values worked by hand, plain loops and properties."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_dynamicrubric.objectives import (
    anchor_accuracy,
    anchor_ranking,
    anchor_ranking_floor,
    combine_advantages,
    discriminability,
    standardise,
)
from openrlhf_dynamicrubric.scoring import response_scores
from tests.rubric_arrays import Arrays, rubric_arrays

anchor_scores = st.lists(st.floats(0, 1), min_size=2, max_size=8)
rewards = st.lists(st.floats(-10, 10), min_size=1, max_size=16)


def slow_disc(weights_M: Any, verdicts_MK: Any) -> float:
    top, bottom = 0.0, 0.0
    for weight, verdicts_K in zip(weights_M, verdicts_MK, strict=True):
        mean = sum(int(verdict) for verdict in verdicts_K) / len(verdicts_K)
        top += int(weight) * mean * (1 - mean)
        bottom += int(weight)
    return top / bottom


def slow_anchor(scores_N: Any) -> float:
    total = 0.0
    for i in range(1, len(scores_N) + 1):
        for j in range(i + 1, len(scores_N) + 1):
            gap = scores_N[i - 1] - scores_N[j - 1]
            total += math.log(1 / (1 + math.exp(-gap))) / ((j - i) * 2 ** (i - 1))
    return total


def slow_standardised(values_G: Any, std_floor: float = 0.0) -> list[float]:
    mean = math.fsum(values_G) / len(values_G)
    if len(values_G) == 1:
        return [0.0]
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values_G) / (len(values_G) - 1))
    return [(value - mean) / (max(std, std_floor) + 1e-4) for value in values_G]


# Discriminability


def test_disc_by_hand() -> None:
    assert discriminability([5], [[1, 1, 1, 1, 0, 0, 0, 0]]) == 0.25
    assert discriminability([5], [[1] * 8]) == 0.0
    assert discriminability([5], [[0] * 8]) == 0.0
    # (3 * 1/4 * 3/4 + 1 * 1/2 * 1/2) / 4
    assert discriminability([3, 1], [[1, 0, 0, 0], [1, 1, 0, 0]]) == 0.203125
    assert discriminability([2], [[1]]) == 0.0


@given(rubric_arrays())
def test_disc_equals_plain_loops_and_stays_in_bounds(arrays: Arrays) -> None:
    disc = discriminability(*arrays)
    assert disc == pytest.approx(slow_disc(*arrays), abs=1e-15)
    assert 0 <= disc <= 0.25
    varies = [0 < sum(row) < len(row) for row in arrays[1].tolist()]
    assert (disc > 0) == any(varies)


@given(rubric_arrays(), st.randoms())
def test_disc_does_not_depend_on_any_order(arrays: Arrays, random: Any) -> None:
    weights_M, verdicts_MK = arrays
    items, responses = list(range(len(weights_M))), list(range(verdicts_MK.shape[1]))
    random.shuffle(items)
    random.shuffle(responses)
    moved = discriminability(weights_M[items], verdicts_MK[items][:, responses])
    assert moved == pytest.approx(discriminability(*arrays), abs=1e-15)


@given(rubric_arrays(max_weight=2))
def test_disc_does_not_depend_on_scale_doubling_or_negation(arrays: Arrays) -> None:
    weights_M, verdicts_MK = arrays
    disc = discriminability(*arrays)
    assert discriminability(2 * weights_M, verdicts_MK) == pytest.approx(disc, abs=1e-15)
    assert discriminability(np.tile(weights_M, 2), np.tile(verdicts_MK, (2, 1))) == pytest.approx(disc, abs=1e-15)
    assert discriminability(weights_M, 1 - verdicts_MK) == pytest.approx(disc, abs=1e-15)


def test_disc_checks_its_arrays() -> None:
    with pytest.raises(ValueError, match="got 7 in item 1"):
        discriminability([7], [[1]])
    with pytest.raises(ValueError, match="got nan; leave out"):
        discriminability([1], [[np.nan]])


# Anchor ranking


def test_anchor_by_hand() -> None:
    assert anchor_ranking([0.4] * 4) == pytest.approx(-(17 / 6) * math.log(2), abs=1e-14)
    assert round(anchor_ranking([0.4] * 4), 4) == -1.9639
    assert round(anchor_ranking_floor(4), 4) == -3.7209
    assert anchor_ranking([1.0, 0.0]) == pytest.approx(math.log(1 / (1 + math.exp(-1))), abs=1e-15)
    # pairs (1,2): weight 1, gap 0.5; (1,3): 1/2, gap 1; (2,3): 1/2, gap 0.5
    low, high = math.log(1 / (1 + math.exp(-0.5))), math.log(1 / (1 + math.exp(-1)))
    assert anchor_ranking([1.0, 0.5, 0.0]) == pytest.approx(1.5 * low + 0.5 * high, abs=1e-15)


@given(anchor_scores)
def test_anchor_equals_plain_loops(scores_N: list[float]) -> None:
    assert anchor_ranking(scores_N) == pytest.approx(slow_anchor(scores_N), abs=1e-12)


@pytest.mark.parametrize("n", range(2, 9))
def test_floor_equals_plain_loops(n: int) -> None:
    log_sigmoid = math.log(1 / (1 + math.exp(1)))
    pairs = [(i, j) for i in range(1, n + 1) for j in range(i + 1, n + 1)]
    slow = sum(log_sigmoid / ((j - i) * 2 ** (i - 1)) for i, j in pairs)
    assert anchor_ranking_floor(n) == pytest.approx(slow, abs=1e-12)


@given(rubric_arrays(min_k=2))
def test_every_valid_rubric_is_above_the_floor(arrays: Arrays) -> None:
    scores_N = response_scores(*arrays)
    floor = anchor_ranking_floor(len(scores_N))
    if len(scores_N) == 2:
        assert anchor_ranking(scores_N) >= floor
    else:
        assert anchor_ranking(scores_N) > floor
    assert anchor_ranking(scores_N) < 0


def test_floor_is_reached_by_two_anchors_in_the_wrong_order() -> None:
    assert anchor_ranking([0.0, 1.0]) == anchor_ranking_floor(2)


@pytest.mark.parametrize("n", range(3, 9))
def test_worst_rubric_of_n_anchors_is_above_the_floor(n: int) -> None:
    worst = min(anchor_ranking([0.0] * cut + [1.0] * (n - cut)) for cut in range(1, n))
    assert worst > anchor_ranking_floor(n) + 0.1


@given(anchor_scores, st.floats(-1, 1))
def test_only_differences_between_anchors_count(scores_N: list[float], shift: float) -> None:
    moved = np.clip(np.array(scores_N) * 0.5 + 0.25 + shift / 4, 0, 1)
    unmoved = np.array(scores_N) * 0.5 + 0.25
    assert anchor_ranking(moved) == pytest.approx(anchor_ranking(unmoved), abs=1e-12)


@given(anchor_scores, st.data())
def test_raising_the_best_or_lowering_the_worst_never_costs(scores_N: list[float], data: st.DataObject) -> None:
    before = anchor_ranking(scores_N)
    assert anchor_ranking([data.draw(st.floats(scores_N[0], 1)), *scores_N[1:]]) >= before - 1e-12
    assert anchor_ranking([*scores_N[:-1], data.draw(st.floats(0, scores_N[-1]))]) >= before - 1e-12


@given(st.lists(st.floats(0, 1), min_size=3, max_size=6, unique=True))
def test_the_right_order_beats_its_reverse(scores: list[float]) -> None:
    assert anchor_ranking(sorted(scores, reverse=True)) >= anchor_ranking(sorted(scores))


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([0.5], "anchor ranking needs the scores of at least 2 anchors, got shape (1,)"),
        ([], "anchor ranking needs the scores of at least 2 anchors, got shape (0,)"),
        ([[0.5, 0.5]], "anchor ranking needs the scores of at least 2 anchors, got shape (1, 2)"),
        ([0.5, 1.5], "anchor scores must lie in [0, 1], got [0.5, 1.5]"),
        ([-0.1, 0.5], "anchor scores must lie in [0, 1], got [-0.1, 0.5]"),
        ([0.5, math.nan], "anchor scores must lie in [0, 1], got [0.5, nan]"),
    ],
)
def test_wrong_anchor_scores_are_named(scores: Any, message: str) -> None:
    for function in (anchor_ranking, anchor_accuracy):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            function(scores)


@pytest.mark.parametrize("n", [1, 0, -3])
def test_floor_needs_two_anchors(n: int) -> None:
    with pytest.raises(ValueError, match=f"^anchor ranking needs at least 2 anchors, got {n}$"):
        anchor_ranking_floor(n)


def test_accuracy_by_hand() -> None:
    assert anchor_accuracy([1.0, 0.5, 0.0]) == 1.0
    assert anchor_accuracy([0.0, 0.5, 1.0]) == 0.0
    assert anchor_accuracy([0.5, 0.5, 0.5]) == 0.5
    assert anchor_accuracy([1.0, 0.0, 0.5]) == pytest.approx(2 / 3, abs=1e-15)


# Advantages


def test_standardise_by_hand() -> None:
    # mean 2, deviations -1 0 1, sample standard deviation 1
    assert standardise([1.0, 2.0, 3.0]).tolist() == pytest.approx([-1 / 1.0001, 0, 1 / 1.0001], abs=1e-15)
    # mean 1, standard deviation sqrt 2
    assert standardise([0.0, 2.0]).tolist() == pytest.approx([-1 / (math.sqrt(2) + 1e-4), 1 / (math.sqrt(2) + 1e-4)])
    assert standardise([0.0, 2.0], std_floor=4.0).tolist() == pytest.approx([-1 / 4.0001, 1 / 4.0001], abs=1e-15)
    assert standardise([0.0, 2.0], eps=1.0).tolist() == pytest.approx([-1 / (math.sqrt(2) + 1), 1 / (math.sqrt(2) + 1)])


@given(rewards, st.sampled_from([0.0, 0.5, 3.0]))
def test_standardise_equals_plain_loops(values_G: list[float], std_floor: float) -> None:
    slow = slow_standardised(values_G, std_floor)
    assert standardise(values_G, std_floor=std_floor).tolist() == pytest.approx(slow, abs=1e-7)


@given(rewards)
def test_standardised_values_have_mean_zero_and_at_most_unit_spread(values_G: list[float]) -> None:
    z_G = standardise(values_G)
    assert z_G.mean() == pytest.approx(0, abs=1e-9)
    if len(values_G) > 1:
        assert z_G.std(ddof=1) <= 1 + 1e-9


@given(st.lists(st.sampled_from([0.0, 0.1, 0.25, 1.0]), min_size=2, max_size=16))
def test_standardise_is_trls_formula(values_G: list[float]) -> None:
    torch = pytest.importorskip("torch")
    values = torch.tensor(values_G, dtype=torch.float64)
    theirs = (values - values.mean()) / (values.std() + 1e-4)
    assert standardise(values_G) == pytest.approx(theirs.numpy(), abs=1e-9)


@pytest.mark.parametrize("value", [0.1 + 0.2, 0.3, 1 / 3, -3.7209, 1e-300])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8])
def test_equal_values_give_exactly_zero(value: float, n: int) -> None:
    assert standardise([value] * n).tolist() == [0.0] * n


def test_values_that_differ_by_rounding_stay_next_to_nothing() -> None:
    z_G = standardise([0.1 + 0.2, 0.3, 0.3, 0.3])
    assert np.abs(z_G).max() < 1e-11


def test_floor_keeps_next_to_nothing_small() -> None:
    nearly_G = [0.200, 0.201]
    assert np.abs(standardise(nearly_G)).max() > 0.6
    assert np.abs(standardise(nearly_G, std_floor=0.05)).max() == pytest.approx(0.0005 / 0.0501)


def test_members_without_reward_stay_out_of_the_baseline() -> None:
    z_G = standardise([1.0, math.nan, 3.0, 2.0])
    assert math.isnan(z_G[1])
    assert z_G[[0, 2, 3]].tolist() == standardise([1.0, 3.0, 2.0]).tolist()
    assert np.isnan(standardise([math.nan, math.nan])).all()
    one_known = standardise([math.nan, 5.0])
    assert math.isnan(one_known[0])
    assert one_known[1] == 0.0
    assert standardise([]).tolist() == []


@pytest.mark.parametrize("values", [[1.0, 2.0], [1.0, 1.0], [math.nan, math.nan]])
def test_standardise_leaves_its_input_alone(values: list[float]) -> None:
    given_G = np.array(values)
    standardise(given_G)[:] = 7.0
    assert np.array_equal(given_G, np.array(values), equal_nan=True)


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ([[1.0]], {}, "group values must be a vector without infinities, got [[1.0]]"),
        ([1.0, math.inf], {}, "group values must be a vector without infinities, got [1.0, inf]"),
        ([1.0], {"std_floor": -1}, "std_floor must be a number of at least 0, got -1"),
        ([1.0], {"std_floor": math.nan}, "std_floor must be a number of at least 0, got nan"),
        ([1.0], {"std_floor": math.inf}, "std_floor must be a number of at least 0, got inf"),
        ([1.0], {"eps": 0.0}, "eps must be a number above 0, got 0.0"),
        ([1.0], {"eps": math.nan}, "eps must be a number above 0, got nan"),
    ],
)
def test_wrong_group_values_are_named(values: Any, options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        standardise(values, **options)


def test_combination_by_hand() -> None:
    # z(disc) = -+1/sqrt 2, z(anchor) = +-1/sqrt 2, both up to eps
    assert combine_advantages([0.0, 0.2], [-1.0, -2.0]).tolist() == pytest.approx([0, 0], abs=1e-3)
    assert combine_advantages([0.0, 0.2], [-2.0, -1.0]).tolist() == pytest.approx([-math.sqrt(2), math.sqrt(2)], abs=2e-3)


@given(st.lists(st.tuples(st.floats(0, 0.25), st.floats(-4, 0)), min_size=1, max_size=8), st.floats(0, 3))
def test_combination_is_the_sum_of_the_standardised(pairs: list[tuple[float, float]], anchor_weight: float) -> None:
    disc_G, anchor_G = [disc for disc, _ in pairs], [anchor for _, anchor in pairs]
    together = combine_advantages(disc_G, anchor_G, anchor_weight=anchor_weight, std_floor=0.01)
    slow = [
        disc + anchor_weight * anchor
        for disc, anchor in zip(slow_standardised(disc_G, 0.01), slow_standardised(anchor_G, 0.01), strict=True)
    ]
    assert together.tolist() == pytest.approx(slow, abs=1e-9)


def test_anchor_weight_zero_leaves_disc_alone() -> None:
    disc_G, anchor_G = [0.1, 0.2, 0.05], [-1.0, -3.0, -2.0]
    assert combine_advantages(disc_G, anchor_G, anchor_weight=0).tolist() == standardise(disc_G).tolist()


def test_the_floor_holds_for_both_rewards() -> None:
    """Differences of 0.002 over a floor of 1: next to nothing, from either side."""
    alone_disc = combine_advantages([0.100, 0.102], [-1.0, -1.0], std_floor=1.0)
    alone_anchor = combine_advantages([0.1, 0.1], [-1.000, -1.002], std_floor=1.0)
    assert alone_disc.tolist() == pytest.approx([-0.001 / 1.0001, 0.001 / 1.0001])
    assert alone_anchor.tolist() == pytest.approx([0.001 / 1.0001, -0.001 / 1.0001])


def test_a_rubric_without_reward_stays_without() -> None:
    combined = combine_advantages([0.1, math.nan, 0.2], [-1.0, math.nan, -2.0])
    assert np.isnan(combined).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("disc", "anchor", "weight", "message"),
    [
        ([0.1], [-1.0, -2.0], 1.0, "one disc and one anchor reward a rubric, got shapes (1,) and (2,)"),
        ([math.nan], [-1.0], 1.0, "a rubric without one of the two rewards has neither: NaN must stand in both"),
        ([0.1], [math.nan], 1.0, "a rubric without one of the two rewards has neither: NaN must stand in both"),
        ([0.1], [-1.0], -0.5, "anchor_weight must be a number of at least 0, got -0.5"),
        ([0.1], [-1.0], math.nan, "anchor_weight must be a number of at least 0, got nan"),
        ([0.1], [-1.0], math.inf, "anchor_weight must be a number of at least 0, got inf"),
    ],
)
def test_wrong_combinations_are_named(disc: Any, anchor: Any, weight: float, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        combine_advantages(disc, anchor, anchor_weight=weight)
