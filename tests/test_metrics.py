"""Every metric against a value worked by hand; what a step does not tell is absent."""

from __future__ import annotations

import numpy as np
import pytest

from openrlhf_dynamicrubric.metrics import PREFIX, group_metrics
from openrlhf_dynamicrubric.scoring import response_scores
from openrlhf_dynamicrubric.types import Evaluation, ResponseSet, Rubric, RubricItem, Unscorable, Usage, WrittenRubric

CALLS = Usage(calls=1, prompt_tokens=100, cached_tokens=60, completion_tokens=20, seconds=2.0)


def evaluation(
    verdicts: list[list[int]],
    responses: tuple[str, ...],
    weights: list[int],
    *,
    written: bool = True,
    rejected: int = 0,
    **more: int,
) -> Evaluation:
    rubric = Rubric(tuple(RubricItem(f"Has {number}", weight) for number, weight in enumerate(weights)))
    reasons = ("cut off",) * rejected
    return Evaluation(
        response_set=ResponseSet("x", responses),
        rubric=rubric,
        probabilities_MK=np.array(verdicts, dtype=float),
        verdicts_MK=np.array(verdicts, dtype=float),
        scores_K=response_scores(weights, verdicts),
        written=WrittenRubric(rubric, "", (), reasons, usage=CALLS) if written else None,
        verifier_usage=Usage(calls=4, prompt_tokens=400),
        **more,
    )


def metrics(*outcomes: Evaluation | Unscorable, seconds: float = 1.5) -> dict[str, float]:
    found = group_metrics(outcomes, seconds=seconds)
    assert all(name.startswith(PREFIX) for name in found)
    assert all(type(value) is float for value in found.values())
    return {name.removeprefix(PREFIX): value for name, value in found.items()}


# scores 0.75, 0.25, 1.0; gaps 0.5, 0.25, 0.75
SPREAD = evaluation([[1, 0, 1], [0, 1, 1]], ("aa", "b", "ccc"), [3, 1], rejected=1, failed_verdicts=2, cached_verdicts=3)
# all met: scores 1, 1
FLAT = evaluation([[1, 1]], ("a", "bb"), [5])
# items: met by all, met by none, split; scores 0.8, 0.2
MIXED = evaluation([[1, 1], [0, 0], [1, 0]], ("a", "a"), [1, 1, 3], written=False)
LOST = Unscorable(
    ResponseSet("x", ("a",)),
    "invalid_rubric",
    "no valid rubric",
    ("no", "no", "no"),
    generator_usage=CALLS + CALLS + CALLS,
)


def test_one_group_by_hand() -> None:
    assert metrics(SPREAD) == {
        "score_gap": pytest.approx(0.5),
        "zero_variance_groups": 0.0,
        "saturated_items": 0.0,
        "items_per_rubric": 2.0,
        "invalid_rubrics": 0.5,
        "failed_verdicts": 2.0,
        "unscorable_groups": 0.0,
        # lengths 2 1 3, scores 0.75 0.25 1: covariance 0.75 / 2, deviations 1 and sqrt(0.875 / 6)
        "score_length_correlation": pytest.approx(0.375 / np.sqrt(0.875 / 6)),
        "generator_tokens": 120.0,
        "verifier_tokens": 400.0,
        "cached_verdicts": 3.0,
        "seconds": 1.5,
    }


def test_a_step_of_several_groups_by_hand() -> None:
    found = metrics(SPREAD, FLAT, MIXED, LOST)
    assert found["score_gap"] == pytest.approx((0.5 + 0.0 + 0.6) / 3)
    assert found["zero_variance_groups"] == pytest.approx(1 / 3)
    assert found["saturated_items"] == pytest.approx(3 / 6)
    assert found["items_per_rubric"] == pytest.approx(2.0)
    assert found["invalid_rubrics"] == pytest.approx(4 / 6)  # 1 + 3 rejected, 2 written
    assert found["failed_verdicts"] == 2.0
    assert found["unscorable_groups"] == 0.25
    assert found["score_length_correlation"] == pytest.approx(0.375 / np.sqrt(0.875 / 6))  # the others do not vary
    assert found["generator_tokens"] == 120.0 * 5
    assert found["verifier_tokens"] == 400.0 * 3
    assert found["cached_verdicts"] == 3.0


def test_only_lost_groups_say_nothing_of_scores() -> None:
    assert metrics(LOST, LOST) == {
        "unscorable_groups": 1.0,
        "failed_verdicts": 0.0,
        "cached_verdicts": 0.0,
        "generator_tokens": 720.0,
        "verifier_tokens": 0.0,
        "invalid_rubrics": 1.0,
        "seconds": 1.5,
    }


def test_a_valid_rubric_without_verdicts_is_an_attempt_that_succeeded() -> None:
    assert SPREAD.written is not None
    unverified = Unscorable(
        ResponseSet("x", ("a",)),
        "verifier_call",
        "down",
        ("no",),
        generator_usage=CALLS,
        failed_verdicts=4,
        cached_verdicts=1,
        written=SPREAD.written,
    )
    found = metrics(unverified)
    assert found["invalid_rubrics"] == 0.5
    assert (found["failed_verdicts"], found["cached_verdicts"], found["generator_tokens"]) == (4.0, 1.0, 120.0)


def test_given_rubrics_say_nothing_of_invalid_ones() -> None:
    assert "invalid_rubrics" not in metrics(MIXED)
    assert metrics(MIXED)["generator_tokens"] == 0.0


def test_equal_lengths_or_scores_have_no_correlation() -> None:
    assert "score_length_correlation" not in metrics(FLAT)
    assert "score_length_correlation" not in metrics(MIXED)
    assert metrics(evaluation([[0, 1]], ("aa", "b"), [1]))["score_length_correlation"] == pytest.approx(-1.0)


def test_one_response_has_no_gap() -> None:
    found = metrics(evaluation([[1]], ("a",), [2]))
    assert (found["score_gap"], found["zero_variance_groups"], found["saturated_items"]) == (0.0, 1.0, 1.0)


def test_no_group_is_no_number() -> None:
    assert set(metrics()) == {"failed_verdicts", "cached_verdicts", "generator_tokens", "verifier_tokens", "seconds"}
    assert "unscorable_groups" not in metrics()
