"""Values are checked when they are made, and cannot be changed afterwards."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, fields
from typing import Any

import numpy as np
import pytest

from openrlhf_dynamicrubric import types
from openrlhf_dynamicrubric.errors import DataError
from openrlhf_dynamicrubric.types import Evaluation, ResponseSet, Rubric, RubricItem, Unscorable, Usage, WrittenRubric

ITEM = RubricItem("Names a date", 3)


def test_response_set_keeps_tuples() -> None:
    texts = ["a", "b"]
    response_set = ResponseSet("Hi", texts, (text for text in ("best", "worst")), "7")  # type: ignore[arg-type]
    texts.append("c")
    assert response_set.responses == ("a", "b")
    assert response_set.anchors == ("best", "worst")
    assert response_set == ResponseSet("Hi", ("a", "b"), ("best", "worst"), "7")


@pytest.mark.parametrize("prompt", ["", "Hi", [{"role": "user", "content": "Hi"}], ({"role": "user", "content": [{"a": 1}]},)])
def test_prompts_are_text_or_turns(prompt: Any) -> None:
    assert ResponseSet(prompt, ("a",)).prompt == prompt


@pytest.mark.parametrize(
    ("prompt", "responses", "anchors", "message"),
    [
        ("Hi", (), (), "response set 'x' has no responses; it needs at least one"),
        ("Hi", "abc", (), "responses of response set 'x' must be a list of texts, got 'abc'"),
        ("Hi", None, (), "responses of response set 'x' must be a list of texts, got None"),
        ("Hi", ("a",), "abc", "anchors of response set 'x' must be a list of texts, got 'abc'"),
        ("Hi", ("a", None), (), "responses[1] of response set 'x' must be text, got None"),
        ("Hi", (b"a",), (), "responses[0] of response set 'x' must be text, got b'a'"),
        ("Hi", ("a",), ("b", 3.5), "anchors[1] of response set 'x' must be text, got 3.5"),
        (None, ("a",), (), "prompt of response set 'x' must be text or a list of chat turns, got None"),
        ([], ("a",), (), "prompt of response set 'x' must be text or a list of chat turns, got []"),
        (["Hi"], ("a",), (), "prompt of response set 'x' must be text or a list of chat turns, got ['Hi']"),
        ({"role": "user"}, ("a",), (), "prompt of response set 'x' must be text or a list of chat turns, got {'role': 'user'}"),
    ],
)
def test_wrong_response_sets_are_named(prompt: Any, responses: Any, anchors: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"^{re.escape(message)}$"):
        ResponseSet(prompt, responses, anchors, "x")


@pytest.mark.parametrize("weight", [0, 6, -1, 2.0, "3", True, None, np.int64(3)])
def test_weights_are_whole_numbers_one_to_five(weight: Any) -> None:
    with pytest.raises(DataError, match=re.escape(f"weights must be whole numbers 1..5, got {weight!r}")):
        RubricItem("Names a date", weight)


@pytest.mark.parametrize("criterion", ["", " \n", None, 3])
def test_criteria_are_texts(criterion: Any) -> None:
    with pytest.raises(DataError, match=re.escape(f"a criterion must be text that is not empty, got {criterion!r}")):
        RubricItem(criterion, 3)


def test_an_empty_rubric_is_none() -> None:
    with pytest.raises(DataError, match="a rubric needs at least one item"):
        Rubric(())


def test_rubric_gives_its_columns() -> None:
    rubric = Rubric([ITEM, RubricItem("Avoids jargon", 5)])  # type: ignore[arg-type]
    assert rubric.items == (ITEM, RubricItem("Avoids jargon", 5))
    assert rubric.criteria == ("Names a date", "Avoids jargon")
    assert rubric.weights_M.tolist() == [3.0, 5.0]
    assert rubric.weights_M.dtype == np.float64


def test_usage_adds_up_and_counts_tokens() -> None:
    total = Usage(1, 2, 3, 4, 0.5) + Usage(10, 20, 30, 40, 0.25)
    assert total == Usage(11, 22, 33, 44, 0.75)
    assert total.tokens == 66
    assert sum([total], Usage()) == total


def test_long_values_are_short_in_messages() -> None:
    with pytest.raises(DataError) as caught:
        ResponseSet("Hi", "x" * 100_000)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", [ITEM, Rubric((ITEM,)), ResponseSet("Hi", ("a",)), Usage()])
def test_values_are_frozen(value: Any) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(value, fields(value)[0].name, None)


def test_fields_that_others_build_with_stay_where_they_are() -> None:
    """Positional use and keyword names of the values that adapters make."""

    def names(kind: Any) -> list[str]:
        return [option.name for option in fields(kind)]

    assert names(ResponseSet) == ["prompt", "responses", "anchors", "id"]
    assert names(WrittenRubric)[:6] == ["rubric", "text", "order", "rejected", "cut_responses", "usage"]
    assert names(Evaluation)[:5] == ["response_set", "rubric", "probabilities_MK", "verdicts_MK", "scores_K"]
    assert names(Unscorable)[:4] == ["response_set", "kind", "reason", "rejected"]
    assert names(types.VerdictMatrix) == ["probabilities_MK", "failures", "asked", "cached", "usage"]
