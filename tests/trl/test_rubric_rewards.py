import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_dynamicrubric import objectives
from openrlhf_dynamicrubric.aio import run
from openrlhf_dynamicrubric.errors import ModelCallError
from openrlhf_dynamicrubric.trl.rubric_rewards import (
    judge_sampled,
    read_sampled,
    reward_columns,
    rubric_metrics,
    rubric_record,
)
from openrlhf_dynamicrubric.types import ResponseSet
from openrlhf_dynamicrubric.verifier import Verifier
from tests.scripted import ScriptedModel, contains_last_letter

SET = ResponseSet("p", ("a", "ab", "b", "c"), ("ab", "a", "c"), "s1")


def rubric(*items):
    return json.dumps({"items": [{"criterion": f"Contains {letter}", "weight": weight} for letter, weight in items]})


def sample(*texts, response_set=SET, ended=True):
    return [read_sampled(response_set, text, tokens=9, ended=ended, max_items=3) for text in texts]


def judge(sampled, model=None):
    verifier = Verifier(model or ScriptedModel(), max_response_chars=1000)
    return run(judge_sampled(sampled, verifier, verdict_threshold=0.5))


def test_a_rubric_earns_its_variance_on_responses_and_its_order_of_anchors():
    [one] = judge(sample(rubric(("a", 5), ("b", 3))))
    # "a" is met by 2 of 4 responses, "b" by 2 of 4: both terms are 1/4.
    assert one.disc == pytest.approx(0.25)
    # Anchor scores 8/8, 5/8, 0.
    assert one.anchor == pytest.approx(objectives.anchor_ranking([1.0, 5 / 8, 0.0]))
    assert one.scores_R.tolist() == [5 / 8, 1.0, 3 / 8, 0.0, 1.0, 5 / 8, 0.0]


def test_responses_alone_count_for_discriminability():
    [one] = judge(sample(rubric(("c", 1)), response_set=ResponseSet("p", ("a", "a"), ("c", "a"))))
    assert one.disc == 0
    assert one.anchor == pytest.approx(objectives.anchor_ranking([1.0, 0.0]))


@pytest.mark.parametrize(
    ("text", "ended", "reason"),
    [
        ("No rubric.", True, "no rubric found"),
        (rubric(("a", 5)), False, "cut off after 9 tokens"),
        (rubric(("a", 7)), True, "7"),
    ],
)
def test_an_invalid_rubric_earns_nothing_and_the_floor_and_asks_nobody(text, ended, reason):
    model = ScriptedModel()
    [one] = judge(sample(text, ended=ended), model)
    assert reason in one.invalid
    assert (one.disc, one.anchor) == (0.0, objectives.anchor_ranking_floor(3))
    assert model.asked == []


def test_an_outage_earns_neither():
    model = ScriptedModel(judge=lambda response, criterion: ModelCallError("timeout"))
    [one] = judge(sample(rubric(("a", 5), ("b", 3))), model)
    assert np.isnan([one.disc, one.anchor]).all()
    assert one.outage == "no item has all its verdicts; timeout"
    assert one.failed_verdicts == 14  # 2 items on 4 responses and 3 anchors


def test_an_item_with_one_missing_verdict_is_left_out_for_responses_and_anchors():
    def flaky(response, criterion):
        return (
            ModelCallError("timeout") if (response, criterion[-1]) == ("c", "b") else contains_last_letter(response, criterion)
        )

    [one] = judge(sample(rubric(("a", 5), ("b", 3))), ScriptedModel(judge=flaky))
    assert [item.criterion for item in one.rubric.items] == ["Contains a"]
    assert [item.criterion for item in one.dropped] == ["Contains b"]
    assert one.scores_R.tolist() == [1, 1, 0, 0, 1, 1, 0]
    assert one.failed_verdicts == 2  # "c" is a response and an anchor
    assert not one.outage


def test_the_rubrics_of_a_group_share_their_questions():
    model = ScriptedModel()
    judged = judge(sample(rubric(("a", 5)), "broken", rubric(("a", 1), ("b", 1)), rubric(("b", 2))), model)
    assert sorted(model.asked) == sorted((text, f"Contains {letter}") for text in ("a", "ab", "b", "c") for letter in "ab")
    assert [one.asked for one in judged] == [8, 0, 0, 0]
    assert [one.usage.calls for one in judged] == [8, 0, 0, 0]


def test_results_keep_their_order_over_groups():
    other = ResponseSet("q", ("x", "y"), ("x", "y"), "s2")
    sampled = sample(rubric(("a", 5)), "broken") + sample(rubric(("x", 5)), response_set=other)
    judged = judge(sampled)
    assert [one.text for one in judged] == [one.text for one in sampled]
    assert judged[2].scores_R.tolist() == [1, 0, 1, 0]


rewards = st.lists(st.tuples(st.floats(0, 0.25), st.floats(-4, -0.1)) | st.none(), min_size=3, max_size=3)


@given(st.lists(rewards, min_size=1, max_size=4), st.floats(0, 3), st.sampled_from([0.0, 0.1]))
def test_the_columns_sum_to_the_papers_advantages(groups, anchor_weight, std_floor):
    disc = np.array([np.nan if one is None else one[0] for group in groups for one in group])
    anchor = np.array([np.nan if one is None else one[1] for group in groups for one in group])
    options = {"size": 3, "anchor_weight": anchor_weight, "std_floor": std_floor}
    columns = reward_columns(disc, anchor, use_discriminability=True, **options)
    expected = [
        objectives.combine_advantages(d, a, anchor_weight=anchor_weight, std_floor=std_floor)
        for d, a in zip(disc.reshape(-1, 3), anchor.reshape(-1, 3), strict=True)
    ]
    assert columns.sum(axis=1) == pytest.approx(np.concatenate(expected), nan_ok=True)
    without = reward_columns(disc, anchor, use_discriminability=False, **options)
    assert without[:, 1] == pytest.approx(columns[:, 1], nan_ok=True)
    assert np.nan_to_num(without[:, 0]).tolist() == [0.0] * len(disc)


def test_metrics_of_a_step_by_hand():
    def flaky(response, criterion):
        return ModelCallError("timeout") if "d" in criterion[-1] else contains_last_letter(response, criterion)

    other = ResponseSet("q", ("a", "b"), ("a", "b"), "s2")
    first = sample(rubric(("a", 5), ("b", 3)), rubric(("a", 5), ("z", 3)), "broken")
    second = sample(rubric(("d", 1)), rubric(("d", 1)), "broken", response_set=other)
    judged = judge(first + second, ScriptedModel(judge=flaky))
    metrics = rubric_metrics(judged, size=3, seconds=2.0)
    assert metrics == {
        "dynamicrubric/invalid_rubrics": 2 / 6,
        "dynamicrubric/unscorable_groups": 0.5,
        "dynamicrubric/failed_verdicts": 8.0,
        "dynamicrubric/cached_verdicts": 28.0 + 8.0 - 12.0 - 2.0,
        "dynamicrubric/verifier_tokens": 14 * 20.0,
        "dynamicrubric/seconds": 2.0,
        "dynamicrubric/disc": pytest.approx((0.25 + 0.25 * 5 / 8 + 0 + 0) / 4),
        "dynamicrubric/anchor": pytest.approx(np.mean([one.anchor for one in judged if not one.outage])),
        # 1, 5/8, 0 in order; 5/8, 5/8, 0 with a tie, which counts one half.
        "dynamicrubric/anchor_accuracy": pytest.approx((1 + 2.5 / 3) / 2),
        "dynamicrubric/saturated_items": 1 / 4,
        "dynamicrubric/items_per_rubric": 2.0,
        "dynamicrubric/item_diversity": pytest.approx((3 / 4 + 1 / 2) / 2),
    }


def test_a_step_without_a_judged_rubric_has_no_made_up_metrics():
    metrics = rubric_metrics(judge(sample("broken", "broken")), size=2, seconds=0.0)
    assert metrics["dynamicrubric/unscorable_groups"] == 1.0
    assert metrics["dynamicrubric/disc"] == 0.0
    absent = {"anchor_accuracy", "saturated_items", "items_per_rubric", "item_diversity"}
    assert not absent & {name.removeprefix("dynamicrubric/") for name in metrics}


def test_case_and_space_do_not_make_an_item_different():
    texts = [json.dumps({"items": [{"criterion": text, "weight": 1}]}) for text in ("Contains  a.", "contains A")]
    metrics = rubric_metrics(judge(sample(*texts)), size=2, seconds=0.0)
    assert metrics["dynamicrubric/item_diversity"] == 0.5


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (rubric(("a", 5)), {"disc": 0.25, "verdicts": [[1, 1, 0, 0]], "anchor_verdicts": [[1, 1, 0]], "invalid": None}),
        ("broken", {"disc": 0.0, "verdicts": None, "anchor_scores": None, "items": []}),
    ],
)
def test_a_record_is_json_and_tells_what_happened(text, keys):
    [one] = judge(sample(text))
    record = json.loads(json.dumps(rubric_record(one, member=2, advantage=0.5, mode="train"), allow_nan=False))
    assert {key: record[key] for key in keys} == keys
    assert (record["kind"], record["id"], record["member"], record["advantage"]) == ("rubric", "s1", 2, 0.5)
    assert record["rubric_text"] == text


def test_a_record_of_an_outage_has_no_rewards():
    model = ScriptedModel(judge=lambda response, criterion: ModelCallError("timeout"))
    [one] = judge(sample(rubric(("a", 5))), model)
    record = rubric_record(one, member=0, advantage=float("nan"), mode="train")
    assert (record["disc"], record["anchor"], record["advantage"]) == (None, None, None)
    assert record["outage"] == "no item has all its verdicts; timeout"
    assert record["items"] == [{"criterion": "Contains a", "weight": 5}]
