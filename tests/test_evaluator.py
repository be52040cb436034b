"""Decisions 1 to 3: a group is scored together or not at all, and a failure is never a score."""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_dynamicrubric.errors import ConfigError, ModelCallError
from openrlhf_dynamicrubric.evaluator import Evaluator, EvaluatorConfig
from openrlhf_dynamicrubric.llm.base import Completion, Judgement
from openrlhf_dynamicrubric.types import Evaluation, Prompt, ResponseSet, Rubric, RubricItem, Unscorable, Usage
from tests.scripted import RUBRIC, ScriptedModel, contains_last_letter, judged_text

# RUBRIC: "Contains a" with weight 5, "Contains b" with weight 3
SET = ResponseSet("x", ("a", "b", "ab", ""), id="7")
SCORES = [0.625, 0.375, 1.0, 0.0]


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, timeout=20))


def evaluator(model: ScriptedModel | None = None, **options: Any) -> Evaluator:
    model = model or ScriptedModel()
    return Evaluator(generator=model, verifier=model, config=EvaluatorConfig(**options))


def scored(outcome: Evaluation | Unscorable) -> Evaluation:
    assert isinstance(outcome, Evaluation), outcome
    return outcome


def lost(outcome: Evaluation | Unscorable) -> Unscorable:
    assert isinstance(outcome, Unscorable), outcome
    return outcome


def failing(*pairs: tuple[str, str]) -> Callable[[str, str], float | ModelCallError]:
    """A judge whose calls fail for (response, criterion) pairs."""

    def judge(response: str, criterion: str) -> float | ModelCallError:
        if (response, criterion) in pairs:
            return ModelCallError(f"no answer on {response!r}")
        return contains_last_letter(response, criterion)

    return judge


# Scores


def test_a_group_is_scored_with_its_own_rubric() -> None:
    model = ScriptedModel()
    outcome = scored(run(evaluator(model).evaluate(SET)))
    assert outcome.scores_K.tolist() == SCORES
    assert outcome.verdicts_MK.tolist() == [[1, 0, 1, 0], [0, 1, 1, 0]]
    assert outcome.probabilities_MK.tolist() == [[0.9, 0.1, 0.9, 0.1], [0.1, 0.9, 0.9, 0.1]]
    assert outcome.rubric.criteria == ("Contains a", "Contains b")
    assert outcome.response_set == SET
    assert (outcome.dropped, outcome.dropped_probabilities, outcome.failures, outcome.failed_verdicts) == ((), (), (), 0)
    assert outcome.written is not None
    assert outcome.written.text == RUBRIC
    assert outcome.verifier_usage.calls == 8
    assert outcome.cached_verdicts == 0
    assert len(model.written) == 1


def test_many_groups_keep_their_order() -> None:
    sets = [replace(SET, responses=SET.responses[:count], id=str(count)) for count in (1, 4, 2, 3)]
    outcomes = run(evaluator().evaluate_many(sets))
    assert [outcome.response_set.id for outcome in outcomes] == ["1", "4", "2", "3"]
    assert [scored(outcome).scores_K.tolist() for outcome in outcomes] == [SCORES[: len(s.responses)] for s in sets]
    assert run(evaluator().evaluate_many([])) == []


def test_one_lost_group_leaves_the_others_alone() -> None:
    def write(prompt: Prompt, seed: int) -> str:
        return "no" if "broken" in str(prompt) else RUBRIC

    outcomes = run(evaluator(ScriptedModel(write)).evaluate_many([SET, replace(SET, prompt="broken"), SET]))
    assert [type(outcome) for outcome in outcomes] == [Evaluation, Unscorable, Evaluation]


@given(st.lists(st.sampled_from(["", "a", "b", "ab", "c"]), min_size=1, max_size=8), st.randoms())
def test_scores_move_with_their_responses(responses: list[str], dice: Any) -> None:
    order = list(range(len(responses)))
    dice.shuffle(order)
    straight = scored(run(evaluator().evaluate(ResponseSet("x", tuple(responses)))))
    moved = scored(run(evaluator().evaluate(ResponseSet("x", tuple(responses[index] for index in order)))))
    assert moved.scores_K.tolist() == straight.scores_K[order].tolist()


def test_scores_move_with_their_responses_even_if_the_rubric_hangs_on_prompt_and_seed() -> None:
    """A generator that writes another rubric for every prompt text and seed, as sampling does."""

    def write(prompt: Prompt, seed: int) -> str:
        letters = sorted("abcdefgh", key=lambda letter: zlib.crc32(f"{letter}{prompt}{seed}".encode()))
        return json.dumps([{"criterion": f"Contains {letter}", "weight": 1 + seed % 5} for letter in letters[:3]])

    responses = ("abc", "cdf", "aeh", "bgh", "")
    judge = evaluator(ScriptedModel(write))
    straight = scored(run(judge.evaluate(ResponseSet("x", responses))))
    moved = scored(run(judge.evaluate(ResponseSet("x", responses[::-1]))))
    assert moved.rubric == straight.rubric
    assert moved.scores_K.tolist() == straight.scores_K[::-1].tolist()


def test_equal_responses_earn_equal_scores_whatever_the_judge_does() -> None:
    """A judge that answers at random is asked once for what is the same."""
    counter = iter(range(1000))
    model = ScriptedModel(judge=lambda response, criterion: (next(counter) * 0.37) % 1)
    outcome = scored(run(evaluator(model).evaluate(ResponseSet("x", ("a", "b", "a", "a", "b")))))
    scores_K = outcome.scores_K.tolist()
    assert scores_K[0] == scores_K[2] == scores_K[3]
    assert scores_K[1] == scores_K[4]
    assert outcome.cached_verdicts == 6


def test_a_given_rubric_is_judged_without_a_generator() -> None:
    judge = Evaluator(generator=None, verifier=ScriptedModel())
    rubric = Rubric((RubricItem("Contains a", 1), RubricItem("Contains b", 3)))
    outcome = scored(run(judge.judge(rubric, SET)))
    assert outcome.scores_K.tolist() == [0.25, 0.75, 1.0, 0.0]
    assert outcome.written is None
    with pytest.raises(ConfigError, match="this evaluator has no generator"):
        run(judge.evaluate(SET))


def test_the_threshold_itself_is_a_yes() -> None:
    model = ScriptedModel(judge=lambda response, criterion: 0.7 if criterion[-1] == "a" else 0.7 - 1e-9)
    outcome = scored(run(evaluator(model, verdict_threshold=0.7).evaluate(SET)))
    assert outcome.verdicts_MK.tolist() == [[1] * 4, [0] * 4]


# Failures


def test_an_item_with_a_missing_verdict_is_dropped_for_all_and_the_weights_renormalised() -> None:
    outcome = scored(run(evaluator(ScriptedModel(judge=failing(("b", "Contains a")))).evaluate(SET)))
    assert outcome.rubric.items == (RubricItem("Contains b", 3),)
    assert outcome.scores_K.tolist() == [0.0, 1.0, 1.0, 0.0]
    assert outcome.verdicts_MK.shape == outcome.probabilities_MK.shape == (1, 4)
    assert outcome.dropped == (RubricItem("Contains a", 5),)
    assert str(outcome.dropped_probabilities) == "((0.9, nan, 0.9, 0.1),)"
    assert outcome.failures == ("no answer on 'b'",)
    assert outcome.failed_verdicts == 1


def test_no_item_left_is_no_score() -> None:
    model = ScriptedModel(judge=failing(("b", "Contains a"), ("", "Contains b")))
    outcome = lost(run(evaluator(model).evaluate(SET)))
    assert outcome.kind == "verifier_call"
    assert outcome.reason == "no item has all its verdicts; no answer on 'b'"
    assert outcome.failures == ("no answer on 'b'", "no answer on ''")
    assert outcome.failed_verdicts == 2
    assert outcome.response_set == SET
    assert outcome.written is not None
    assert outcome.written.text == RUBRIC
    assert outcome.dropped == (RubricItem("Contains a", 5), RubricItem("Contains b", 3))
    assert str(outcome.dropped_probabilities) == "((0.9, nan, 0.9, 0.1), (0.1, 0.9, 0.9, nan))"
    assert outcome.verifier_usage.calls == 8
    assert outcome.generator_usage.calls == 1


def test_a_given_rubric_without_verdicts_is_no_score() -> None:
    def down(response: str, criterion: str) -> float:
        raise ModelCallError("down")

    outcome = lost(run(evaluator(ScriptedModel(judge=down)).judge(Rubric((RubricItem("Contains a", 1),)), SET)))
    assert (outcome.kind, outcome.written, outcome.failed_verdicts) == ("verifier_call", None, 4)


def test_no_valid_rubric_after_the_retries_is_no_score() -> None:
    answers = iter(["no", '{"items": []}', "[[", RUBRIC])
    model = ScriptedModel(lambda prompt, seed: next(answers))
    outcome = lost(run(evaluator(model, rubric_retries=2).evaluate(SET)))
    assert outcome.kind == "invalid_rubric"
    assert [reason.split(":")[0] for reason in outcome.rejected] == [
        "no rubric found",
        "expected 1 to 8 items, got 0",
        "JSON is cut off",
    ]
    assert outcome.rejected_texts == ("no", '{"items": []}', "[[")
    assert outcome.reason == "no valid rubric in 3 attempts; the last: JSON is cut off"
    assert outcome.generator_usage.calls == 3
    assert outcome.verifier_usage == Usage()
    assert model.asked == []


def test_a_generator_that_cannot_be_reached_is_no_score() -> None:
    answers = iter(["no", ModelCallError("connection refused")])

    def write(prompt: Prompt, seed: int) -> str:
        answer = next(answers)
        if isinstance(answer, ModelCallError):
            raise answer
        return answer

    outcome = lost(run(evaluator(ScriptedModel(write)).evaluate(SET)))
    assert (outcome.kind, outcome.reason) == ("generator_call", "connection refused")
    assert len(outcome.rejected) == 1
    assert outcome.generator_usage.calls == 1
    assert outcome.failed_verdicts == 0


def test_a_rubric_after_a_rejected_one_keeps_the_reason() -> None:
    answers = iter(["no", RUBRIC])
    outcome = scored(run(evaluator(ScriptedModel(lambda prompt, seed: next(answers))).evaluate(SET)))
    assert outcome.written is not None
    assert len(outcome.written.rejected) == 1
    assert outcome.written.usage.calls == 2


@pytest.mark.parametrize("part", ["write", "judge"])
def test_a_bug_is_not_an_outage(part: str) -> None:
    def bug(*args: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(evaluator(ScriptedModel(**{part: bug})).evaluate_many([SET, replace(SET, prompt="y")]))


# Options


class Recorder(ScriptedModel):
    """Keeps whatever it is asked and told."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.told: list[Any] = []

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
        self.told.append([str(prompt), max_tokens, temperature, seed, json.dumps(json_schema)])
        return await super().complete(prompt, max_tokens=max_tokens, temperature=temperature, seed=seed)

    async def yes_probabilities(self, shared: str, questions: Sequence[str]) -> Judgement:
        self.told.append(judged_text(shared))
        return await super().yes_probabilities(shared, questions)


OTHER_VALUES: dict[str, Any] = {
    "judge_seed": 1,
    "max_items": 3,
    "max_criterion_chars": 50,
    "rubric_max_tokens": 99,
    "rubric_temperature": 0.5,
    "rubric_retries": 0,
    "rubric_source": "prompt",
    "constrained_rubrics": False,
    "verdict_threshold": 0.95,
    "max_response_chars": 5,
    "strip_reasoning": False,
}
FOR_LOADING: dict[str, Any] = {"generator": "g", "verifier": "v", "judge_dtype": "float16", "judge_batch_tokens": 7}


def behaviour(**options: Any) -> str:
    """Everything that can be seen from outside when a group is scored: calls to the models and the result."""
    left = [RUBRIC, "no"]
    model = Recorder(lambda prompt, seed: left.pop())
    responses = ("<think>hm</think>a", "b", "a rather long response ab", "")
    outcome = run(evaluator(model, **options).evaluate(replace(SET, responses=responses)))
    return f"{model.told} {outcome}"


def test_the_two_tables_name_every_option() -> None:
    assert {option.name for option in fields(EvaluatorConfig)} == set(OTHER_VALUES) | set(FOR_LOADING)
    for name, value in (OTHER_VALUES | FOR_LOADING).items():
        assert value != getattr(EvaluatorConfig(), name)


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_every_option_changes_what_happens(name: str) -> None:
    assert behaviour() == behaviour()
    assert behaviour(**{name: OTHER_VALUES[name]}) != behaviour()


def test_the_other_options_reach_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    from openrlhf_dynamicrubric.llm import load

    calls = []

    def load_model(name: str, **options: Any) -> ScriptedModel:
        calls.append((name, options))
        return ScriptedModel()

    monkeypatch.setattr(load, "load_model", load_model)
    judge = load.load_evaluator(EvaluatorConfig(**FOR_LOADING))
    assert sorted(calls) == [("g", {"dtype": "float16", "batch_tokens": 7}), ("v", {"dtype": "float16", "batch_tokens": 7})]
    assert judge.config == EvaluatorConfig(**FOR_LOADING)
    calls.clear()
    assert load.load_evaluator(EvaluatorConfig(**FOR_LOADING), with_generator=False).generator is None
    assert [name for name, _ in calls] == ["v"]


def test_every_option_says_what_it_does() -> None:
    for option in fields(EvaluatorConfig):
        assert len(option.metadata["help"]) > 30, option.name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[
            (name, value)
            for name in ("judge_batch_tokens", "max_items", "rubric_max_tokens")
            for value in (0, -1, 2.0, "8", True)
        ],
        ("max_criterion_chars", 0),
        ("max_criterion_chars", None),
        ("rubric_retries", -1),
        ("rubric_retries", False),
        ("rubric_retries", 1.5),
        ("judge_seed", "0"),
        ("judge_seed", True),
        ("rubric_temperature", -0.1),
        ("rubric_temperature", float("nan")),
        ("rubric_temperature", float("inf")),
        ("rubric_temperature", "1e-1"),
        ("rubric_temperature", True),
        ("verdict_threshold", 0),
        ("verdict_threshold", 1),
        ("verdict_threshold", float("nan")),
        ("verdict_threshold", "0.5"),
        ("max_response_chars", 1),
        ("rubric_source", "responces"),
        ("rubric_source", None),
        ("judge_dtype", "fp16"),
        ("judge_dtype", ["auto"]),
        ("constrained_rubrics", 1),
        ("constrained_rubrics", "false"),
        ("strip_reasoning", None),
        ("generator", ""),
        ("generator", None),
        ("verifier", " "),
        ("verifier", 8),
    ],
)
def test_values_that_cannot_work_are_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name} cannot be {re.escape(repr(value))}. {name}: [A-Z]"):
        EvaluatorConfig(**{name: value})


def test_whole_numbers_do_for_numbers() -> None:
    assert EvaluatorConfig(rubric_temperature=0, rubric_retries=0, judge_seed=-3).rubric_temperature == 0


def test_subclasses_check_the_same_options() -> None:
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class More(EvaluatorConfig):
        anchor_weight: float = 1.0

    with pytest.raises(ConfigError, match="max_items cannot be 0"):
        More(max_items=0)
    assert More(anchor_weight=0.5).max_items == 8


# Reasoning


def test_reasoning_is_not_judged() -> None:
    model = ScriptedModel()
    thinking = ResponseSet("x", ("<think>a</think>b", "a b</think>b", "<think>b", "b"), ("<think>a</think>b", "a"), "7")
    outcome = scored(run(evaluator(model).evaluate(thinking)))
    assert outcome.response_set == ResponseSet("x", ("b", "b", "", "b"), ("b", "a"), "7")
    assert outcome.scores_K.tolist() == [0.375, 0.375, 0.0, 0.375]
    assert {response for response, _ in model.asked} == {"b", ""}
    assert "<think>" not in str(model.written)


def test_reasoning_is_judged_by_option() -> None:
    model = ScriptedModel()
    thinking = ResponseSet("x", ("<think>a</think>b", "b"))
    outcome = scored(run(evaluator(model, strip_reasoning=False).evaluate(thinking)))
    assert outcome.response_set == thinking
    assert outcome.scores_K.tolist() == [1.0, 0.375]
    assert "<think>" in str(model.written)
