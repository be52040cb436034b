"""What the generator is shown and asked, and what becomes of its answers."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_dynamicrubric.errors import ModelCallError, RubricParseError
from openrlhf_dynamicrubric.generator import (
    GeneratorCallError,
    InvalidRubricError,
    RubricGenerator,
    content_seed,
    generator_prompt,
    read_rubric,
)
from openrlhf_dynamicrubric.llm.base import Completion
from openrlhf_dynamicrubric.parsing import rubric_schema
from openrlhf_dynamicrubric.types import Prompt, ResponseSet, Usage
from tests.scripted import RUBRIC, ScriptedModel

SET = ResponseSet("Name a fruit.", ("apple", "banana", "cherry", "durian"), ("best anchor", "worst anchor"), "7")
OPTIONS: dict[str, Any] = {"max_items": 8, "max_response_chars": 1000, "seed": 0}


def shown(response_set: ResponseSet, **options: Any) -> tuple[str, list[str], tuple[int, ...]]:
    """The prompt's text, the responses in the order in which it shows them, and `order`."""
    prompt = generator_prompt(response_set, **{**OPTIONS, **options})
    (message,) = prompt.messages
    assert message["role"] == "user"
    code = re.findall(r"^<request ([0-9a-f]{8})>$", message["content"], re.MULTILINE)[0]
    responses = re.findall(rf"<response \d+ {code}>\n(.*?)\n</response \d+ {code}>", message["content"], re.DOTALL)
    return message["content"], responses, prompt.order


class Recorder(ScriptedModel):
    """Keeps the arguments of every completion."""

    def __init__(self, write: Callable[[Prompt, int], str | Completion]) -> None:
        super().__init__(write)
        self.calls: list[dict[str, Any]] = []

    async def complete(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        temperature: float,
        top_p: float = 1.0,
        seed: int = 0,
        json_schema: Mapping[str, Any] | None = None,
    ) -> Completion:
        self.calls.append({"max_tokens": max_tokens, "temperature": temperature, "seed": seed, "json_schema": json_schema})
        return await super().complete(prompt, max_tokens=max_tokens, temperature=temperature, seed=seed)


def generator(model: ScriptedModel, **options: Any) -> RubricGenerator:
    defaults: dict[str, Any] = {
        "max_items": 8,
        "max_criterion_chars": 100,
        "max_tokens": 64,
        "temperature": 1.0,
        "retries": 2,
        "constrained": True,
        "source": "responses",
        "max_response_chars": 1000,
        "seed": 0,
    }
    return RubricGenerator(model=model, **{**defaults, **options})


def in_turn(*answers: str | Completion | ModelCallError) -> Recorder:
    left = list(answers)

    def write(prompt: Prompt, seed: int) -> str | Completion:
        answer = left.pop(0)
        if isinstance(answer, ModelCallError):
            raise answer
        return answer

    return Recorder(write)


# The prompt


def test_responses_are_shown_once_each_and_anchors_never() -> None:
    text, responses, order = shown(SET)
    assert sorted(responses) == sorted(SET.responses)
    assert [SET.responses[index] for index in order] == responses
    assert "anchor" not in text
    assert "Name a fruit." in text


def test_order_is_seeded_and_random() -> None:
    orders = {tuple(shown(SET, seed=seed)[1]) for seed in range(60)}
    assert len(orders) > 15  # of 24
    assert shown(SET, seed=5) == shown(SET, seed=5)
    firsts = [shown(SET, seed=seed)[1][0] for seed in range(200)]
    assert all(30 <= firsts.count(response) <= 70 for response in SET.responses)


@given(st.permutations(range(4)), st.integers(0, 5))
def test_order_shown_does_not_depend_on_the_order_given(moved: list[int], seed: int) -> None:
    again = ResponseSet(SET.prompt, tuple(SET.responses[index] for index in moved))
    text, responses, order = shown(again, seed=seed)
    assert (text, responses) == shown(SET, seed=seed)[:2]
    assert [again.responses[index] for index in order] == responses


def test_order_differs_between_response_sets() -> None:
    orders = {shown(ResponseSet(f"Prompt {number}", SET.responses))[2] for number in range(30)}
    assert len(orders) > 10


def test_order_does_not_touch_global_randomness() -> None:
    random.seed(3)
    before = random.getstate()
    shown(SET)
    assert random.getstate() == before


def test_equal_responses_are_each_shown() -> None:
    _, responses, order = shown(ResponseSet("Hi", ("a", "b", "a")))
    assert sorted(responses) == ["a", "a", "b"]
    assert sorted(order) == [0, 1, 2]


def test_long_responses_and_prompts_are_cut_and_counted() -> None:
    long = ResponseSet("p" * 50, ("a" * 11, "b" * 10, "c" * 300))
    prompt = generator_prompt(long, max_items=8, max_response_chars=10, seed=0)
    text = prompt.messages[0]["content"]
    assert prompt.cut_responses == 2
    assert "aaaaa\n[... 1 characters left out ...]\naaaaa" in text
    assert "ccccc\n[... 290 characters left out ...]\nccccc" in text
    assert "ppppp\n[... 40 characters left out ...]\nppppp" in text
    assert "b" * 10 in text


def test_static_rubrics_see_the_prompt_alone() -> None:
    text, responses, order = shown(SET, source="prompt")
    assert responses == []
    assert order == ()
    assert not any(response in text for response in SET.responses)
    assert "Name a fruit." in text
    assert shown(ResponseSet(SET.prompt, ("other",)), source="prompt")[0] == text


def test_max_items_reaches_both_templates() -> None:
    for source in ("responses", "prompt"):
        text = shown(SET, source=source)[0]
        assert "37" not in text
        assert "37" in shown(SET, max_items=37, source=source)[0]


def test_conversations_are_shown_turn_by_turn() -> None:
    turns = [{"role": "user", "content": "Name a fruit."}, {"role": "assistant", "content": "A what?"}]
    assert '{"role": "assistant", "content": "A what?"}' in shown(ResponseSet(turns, ("a",)))[0]


# Seeds


def test_seed_depends_on_what_is_scored_only() -> None:
    seed = content_seed(0, SET)
    assert 0 <= seed < 2**31
    assert seed == content_seed(0, ResponseSet(SET.prompt, SET.responses[::-1], (), "another id"))
    assert seed == content_seed(0, ResponseSet([{"role": "user", "content": "Name a fruit."}], SET.responses))
    others = [
        content_seed(1, SET),
        content_seed(0, SET, 0),
        content_seed(0, SET, 1),
        content_seed(0, SET, "1"),
        content_seed(0, ResponseSet("Name a fruit!", SET.responses)),
        content_seed(0, ResponseSet(SET.prompt, SET.responses[:3])),
        content_seed(0, ResponseSet(SET.prompt, (*SET.responses[:3], "durian "))),
    ]
    assert len({seed, *others}) == 8


def test_seed_takes_any_text() -> None:
    assert content_seed(0, ResponseSet("\ud800", ("\udfff", "\x00"))) != content_seed(
        0, ResponseSet("\ud801", ("\udfff", "\x00"))
    )


# Answers


def test_a_cut_off_rubric_is_invalid_even_if_it_parses() -> None:
    whole = Completion(RUBRIC, "stop", Usage(completion_tokens=9))
    assert len(read_rubric(whole, max_items=8).items) == 2
    with pytest.raises(RubricParseError, match=r"^cut off after 9 tokens$"):
        read_rubric(Completion(RUBRIC, "length", Usage(completion_tokens=9)), max_items=8)


def test_the_first_valid_rubric_is_taken() -> None:
    model = in_turn(RUBRIC)
    written = asyncio.run(generator(model, max_tokens=77, temperature=0.3).write(SET))
    assert written.rubric.criteria == ("Contains a", "Contains b")
    assert written.text == RUBRIC
    assert [SET.responses[index] for index in written.order] == shown(SET)[1]
    assert (written.rejected, written.rejected_texts, written.cut_responses) == ((), (), 0)
    assert written.usage == Usage(calls=1, prompt_tokens=10, completion_tokens=5)
    (call,) = model.calls
    assert call == {
        "max_tokens": 77,
        "temperature": 0.3,
        "seed": content_seed(0, SET, 0),
        "json_schema": rubric_schema(max_items=8, max_criterion_chars=100),
    }


def test_invalid_rubrics_are_asked_again_with_another_seed() -> None:
    model = in_turn("no", Completion(RUBRIC, "length", Usage(calls=1, completion_tokens=64)), RUBRIC)
    written = asyncio.run(generator(model).write(SET))
    assert len(written.rejected) == 2
    assert written.rejected[0].startswith("no rubric found")
    assert written.rejected[1] == "cut off after 64 tokens"
    assert written.rejected_texts == ("no", RUBRIC)
    assert written.usage == Usage(calls=3, prompt_tokens=20, completion_tokens=74)
    assert len({call["seed"] for call in model.calls}) == 3
    assert model.written == [model.written[0]] * 3


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_after_the_retries_all_reasons_are_told(retries: int) -> None:
    model = in_turn(*[f"no {number}" for number in range(10)])
    with pytest.raises(
        InvalidRubricError, match=f"no valid rubric in {1 + retries} attempts; the last: no rubric found"
    ) as caught:
        asyncio.run(generator(model, retries=retries).write(SET))
    assert len(model.calls) == len(caught.value.rejected) == 1 + retries
    assert caught.value.rejected_texts == tuple(f"no {number}" for number in range(1 + retries))
    assert caught.value.usage.calls == 1 + retries


def test_a_failed_call_is_not_an_invalid_rubric() -> None:
    model = in_turn("no", ModelCallError("the server is down"), RUBRIC)
    with pytest.raises(GeneratorCallError, match=r"^the server is down$") as caught:
        asyncio.run(generator(model).write(SET))
    assert isinstance(caught.value, ModelCallError)
    assert len(caught.value.rejected) == 1
    assert caught.value.rejected_texts == ("no",)
    assert caught.value.usage.calls == 1
    assert len(model.calls) == 2


def test_a_bug_stays_a_bug() -> None:
    def write(prompt: Prompt, seed: int) -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(generator(ScriptedModel(write)).write(SET))


def test_unconstrained_rubrics_are_free_text() -> None:
    model = in_turn(RUBRIC)
    asyncio.run(generator(model, constrained=False).write(SET))
    assert model.calls[0]["json_schema"] is None


def test_schema_follows_the_options() -> None:
    model = in_turn(json.dumps([{"criterion": "Names a date", "weight": 1}]))
    asyncio.run(generator(model, max_items=1, max_criterion_chars=30).write(SET))
    assert model.calls[0]["json_schema"] == rubric_schema(max_items=1, max_criterion_chars=30)


def test_more_items_than_allowed_are_invalid() -> None:
    with pytest.raises(InvalidRubricError, match="expected 1 to 1 items, got 2"):
        asyncio.run(generator(in_turn(RUBRIC), max_items=1, retries=0).write(SET))


def test_a_static_rubric_does_not_depend_on_the_responses() -> None:
    model = in_turn(RUBRIC, RUBRIC, RUBRIC)
    static = generator(model, source="prompt")
    for responses in (SET.responses, ("other",)):
        asyncio.run(static.write(ResponseSet(SET.prompt, responses)))
    asyncio.run(static.write(ResponseSet("Another prompt", SET.responses)))
    assert model.written[0] == model.written[1] != model.written[2]
    assert model.calls[0] == model.calls[1] != model.calls[2]
