"""The model as its callers see it: batches that nobody notices, and errors that are each caller's own."""

from __future__ import annotations

import asyncio
import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from openrlhf_dynamicrubric.errors import ConfigError, ModelCallError
from openrlhf_dynamicrubric.llm import transformers_completions, transformers_judgements
from openrlhf_dynamicrubric.llm.base import Completion, Judgement
from openrlhf_dynamicrubric.llm.transformers_local import TransformersModel
from openrlhf_dynamicrubric.parsing import rubric_schema
from tests.llm.support import WORDS, sharpen, texts, tiny_model, why_invalid
from tests.tiny import build_tiny_model

SCHEMA = rubric_schema(max_items=3, max_criterion_chars=30)


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def together(*calls: Any) -> list[Any]:
    async def gather() -> list[Any]:
        return list(await asyncio.gather(*calls, return_exceptions=True))

    return asyncio.run(gather())


def numbers(judgement: Judgement) -> list[float]:
    assert not [answer for answer in judgement.probabilities if isinstance(answer, ModelCallError)]
    return [float(answer) for answer in judgement.probabilities]  # type: ignore[arg-type]


def completions(model: TransformersModel) -> list[Any]:
    """Calls of every kind: chat and plain text, free and constrained, greedy and warm, short and long."""
    return [
        model.complete(chat("hi"), max_tokens=12, temperature=1.0, seed=1),
        model.complete("yes no " * 9, max_tokens=20, temperature=0.0),
        model.complete(chat("Judge " * 30), max_tokens=60, temperature=0.7, seed=3, json_schema=SCHEMA),
        model.complete(chat("Judge"), max_tokens=60, temperature=1.0, seed=4, json_schema=SCHEMA),
        model.complete(chat("Judge"), max_tokens=60, temperature=1.0, seed=5, json_schema=SCHEMA),
        model.complete("a", max_tokens=7, temperature=1.3, top_p=0.8, seed=6),
    ]


def test_a_completion_does_not_depend_on_its_neighbours(tiny: TransformersModel) -> None:
    batch = together(*completions(tiny))
    alone = [together(call)[0] for call in completions(tiny)]
    assert [c.text for c in batch] == [c.text for c in alone]
    assert [c.finish_reason for c in batch] == [c.finish_reason for c in alone]
    assert len({c.text for c in batch}) == len(batch)


def test_a_verdict_does_not_depend_on_its_neighbours(tiny: TransformersModel) -> None:
    batch = together(*(tiny.yes_probabilities(text, WORDS) for text in texts(7)))
    one_text_each = [together(tiny.yes_probabilities(text, WORDS))[0] for text in texts(7)]
    one_question_each = [
        [numbers(together(tiny.yes_probabilities(text, [question]))[0])[0] for question in WORDS] for text in texts(7)
    ]
    for some, others, singles in zip(batch, one_text_each, one_question_each, strict=True):
        assert numbers(some) == pytest.approx(numbers(others), abs=1e-6)
        assert numbers(some) == pytest.approx(singles, abs=1e-6)
    values = [value for judgement in batch for value in numbers(judgement)]
    assert max(values) - min(values) > 0.1


def test_the_same_seed_gives_the_same_text_and_another_one_another(tiny: TransformersModel) -> None:
    first, again, other = together(
        *(tiny.complete(chat("hi"), max_tokens=16, temperature=1.0, seed=seed) for seed in (5, 5, 6))
    )
    assert first.text == again.text
    assert first.text != other.text


def test_kinds_of_calls_run_side_by_side(tiny: TransformersModel) -> None:
    answers = together(*completions(tiny), *(tiny.yes_probabilities(text, WORDS) for text in texts(5)), *completions(tiny))
    assert [type(answer) for answer in answers] == [Completion] * 6 + [Judgement] * 5 + [Completion] * 6


def test_the_end_of_a_text_is_told_from_a_cut(tiny: TransformersModel) -> None:
    cut, ended = together(
        tiny.complete(chat("hi"), max_tokens=3, temperature=1.0, json_schema=SCHEMA),
        tiny.complete(chat("hi"), max_tokens=400, temperature=1.0, json_schema=SCHEMA),
    )
    assert (cut.finish_reason, cut.usage.completion_tokens) == ("length", 3)
    assert ended.finish_reason == "stop"
    assert ended.text.startswith(cut.text)


def test_constrained_text_is_a_rubric_unless_it_is_cut(tiny: TransformersModel) -> None:
    answers = together(
        *(tiny.complete(chat("hi"), max_tokens=250, temperature=1.0, seed=seed, json_schema=SCHEMA) for seed in range(24))
    )
    whole = [answer.text for answer in answers if answer.finish_reason == "stop"]
    assert len(whole) > 12
    assert all({tuple(item) for item in json.loads(text)["items"]} == {("criterion", "weight")} for text in whole)
    assert {reason for text in whole if (reason := why_invalid(text, max_items=3))} <= {
        "says something",
        "same criterion",
        "position",
    }
    assert sum(not why_invalid(text, max_items=3) for text in whole) > 0.8 * len(whole)


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, size: Callable[..., int]) -> list[int]:
    sizes: list[int] = []
    original = getattr(module, name)

    def counting(*arguments: Any, **options: Any) -> Any:
        sizes.append(size(*arguments))
        return original(*arguments, **options)

    monkeypatch.setattr(module, name, counting)
    return sizes


def test_batches_are_sized_by_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(tmp_path, batch_tokens=200)
    sizes = counted(monkeypatch, transformers_completions, "decode", lambda _, rows: len(rows))
    prompts = ["yes " * 10] * 9  # 20 tokens each
    length = len(model.chat.prompt(prompts[0]))
    together(*(model.complete(prompt, max_tokens=30, temperature=0) for prompt in prompts))
    most = 200 // (length + 30)
    assert sizes == [most] * (9 // most) + [9 % most] * (9 % most > 0)


def test_questions_of_one_text_share_it_over_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(tmp_path)
    rows = counted(monkeypatch, transformers_judgements, "shared_log_odds", lambda _, rows, *__: len(rows))
    text = texts(1)[0]
    first, second = together(model.yes_probabilities(text, WORDS[:3]), model.yes_probabilities(text, WORDS[2:]))
    assert rows == [1]
    assert first.probabilities[2] == second.probabilities[0]
    [alone] = together(model.yes_probabilities(text, WORDS))
    assert numbers(alone) == pytest.approx(numbers(first) + numbers(second)[1:], abs=1e-6)


def test_usage_counts_what_a_naive_client_would_send_and_what_was_saved(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    text = texts(3)[2]
    lengths = [len(tokens) for tokens in model.chat.questions(text, WORDS)]
    [judgement] = together(model.yes_probabilities(text, WORDS))
    tokens = model.chat.questions(text, WORDS)
    prefix = next(i for i, column in enumerate(zip(*tokens, strict=False)) if len(set(column)) > 1)
    assert judgement.usage.calls == len(WORDS)
    assert judgement.usage.prompt_tokens == sum(lengths)
    assert judgement.usage.cached_tokens == prefix * (len(WORDS) - 1)
    assert judgement.usage.seconds > 0
    [single] = together(model.yes_probabilities(text, WORDS[:1]))
    assert (single.usage.prompt_tokens, single.usage.cached_tokens) == (lengths[0], 0)
    [completion] = together(model.complete(chat("hi"), max_tokens=5, temperature=1.0))
    assert completion.usage.prompt_tokens == len(model.chat.prompt(chat("hi")))
    assert completion.usage.completion_tokens <= 5


def test_of_two_calls_with_one_question_only_one_pays(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    first, second = together(*(model.yes_probabilities("a text", ["Is it?"]) for _ in range(2)))
    assert first.probabilities == second.probabilities
    assert first.usage.cached_tokens == 0
    assert second.usage.cached_tokens == second.usage.prompt_tokens


def test_no_question_is_no_work(tiny: TransformersModel) -> None:
    [judgement] = together(tiny.yes_probabilities("a text", []))
    assert judgement.probabilities == ()


def test_a_checkpoints_own_sampling_reaches_no_draw(tmp_path: Path) -> None:
    plain = tiny_model(tmp_path / "plain")
    own = {"do_sample": True, "top_k": 1, "temperature": 0.1, "repetition_penalty": 9.0, "min_new_tokens": 30}
    build = tmp_path / "own"
    build_tiny_model(build)
    (build / "generation_config.json").write_text(json.dumps(own | {"eos_token_id": [2, 0]}))
    model = TransformersModel.load(build, device="cpu")
    sharpen(model)
    assert model.eos_token_ids == {0, 2}
    plain.eos_token_ids = model.eos_token_ids
    assert [c.text for c in together(*completions(model))] == [c.text for c in together(*completions(plain))]


def test_a_prompt_that_is_too_long_is_its_callers_error(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, config={"max_position_embeddings": 64})
    good, long, other = together(
        model.complete("yes", max_tokens=10, temperature=0),
        model.complete("yes no " * 60, max_tokens=10, temperature=0),
        model.complete("no", max_tokens=10, temperature=0),
    )
    count = len(model.chat.prompt("yes no " * 60))
    assert isinstance(long, ModelCallError)
    assert f"{count} tokens" in str(long)
    assert "takes 54" in str(long)
    assert (type(good), type(other)) == (Completion, Completion)
    exact = "".join(["yes"] * 54)
    assert len(model.chat.prompt(exact)) == 54
    fits, too_many = together(
        model.complete(exact, max_tokens=10, temperature=0), model.complete(exact, max_tokens=11, temperature=0)
    )
    assert isinstance(fits, Completion)
    assert isinstance(too_many, ModelCallError)


def test_a_question_that_is_too_long_is_its_own_error(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, config={"max_position_embeddings": 120})
    [judgement, other] = together(
        model.yes_probabilities("a text. ", ["Short?", "Long " * 40, "Is it?"]), model.yes_probabilities("b " * 200, ["Short?"])
    )
    first, second, third = judgement.probabilities
    assert isinstance(second, ModelCallError)
    assert "takes 119" in str(second)
    [alone] = together(model.yes_probabilities("a text. ", ["Short?", "Is it?"]))
    assert [first, third] == pytest.approx(numbers(alone), abs=1e-6)
    assert isinstance(other.probabilities[0], ModelCallError)


def test_a_question_may_fill_the_context_but_for_its_answer(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    length = len(model.chat.questions("a text. ", ["Is it?"])[0])
    for limit, fits in ((length + 1, True), (length, False)):
        model.model.config.max_position_embeddings = limit
        [judgement] = together(model.yes_probabilities("a text. ", ["Is it?"]))
        assert isinstance(judgement.probabilities[0], float) == fits


def memory_of(rows: int, monkeypatch: pytest.MonkeyPatch, model: TransformersModel) -> None:
    """A device that holds so many rows of questions or completions."""
    original = model.model.forward

    def forward(input_ids: torch.Tensor, **options: Any) -> Any:
        if input_ids.shape[0] > rows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(input_ids=input_ids, **options)

    monkeypatch.setattr(model.model, "forward", forward)


def test_a_batch_that_exceeds_the_memory_is_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(tmp_path)
    expected = [c.text for c in together(*completions(model))]
    verdicts = [numbers(j) for j in together(*(model.yes_probabilities(text, WORDS) for text in texts(5)))]
    memory_of(1, monkeypatch, model)
    assert [c.text for c in together(*completions(model))] == expected
    for some, others in zip(together(*(model.yes_probabilities(t, WORDS) for t in texts(5))), verdicts, strict=True):
        assert numbers(some) == pytest.approx(others, abs=1e-6)


def test_a_row_that_exceeds_the_memory_alone_is_its_callers_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(tmp_path)
    together(model.yes_probabilities("a", WORDS))
    memory_of(0, monkeypatch, model)
    completion, judgement = together(
        model.complete("yes", max_tokens=3, temperature=0), model.yes_probabilities("a", WORDS[:3])
    )
    assert isinstance(completion, ModelCallError)
    assert "memory" in str(completion)
    assert [type(answer) for answer in judgement.probabilities] == [ModelCallError] * 3


def test_questions_that_exceed_the_memory_together_are_asked_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(tmp_path)
    expected = numbers(together(model.yes_probabilities(texts(1)[0], WORDS))[0])
    original = transformers_judgements.shared_log_odds

    def limited(owner: Any, rows: Any, *arguments: Any, **options: Any) -> Any:
        if sum(len(row.suffixes) for row in rows) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(owner, rows, *arguments, **options)

    monkeypatch.setattr(transformers_judgements, "shared_log_odds", limited)
    [judgement] = together(model.yes_probabilities(texts(1)[0], WORDS))
    assert numbers(judgement) == pytest.approx(expected, abs=1e-6)


def test_a_bug_reaches_every_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(tmp_path)

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(transformers_completions, "decode", broken)
        answers = together(*completions(model))
    assert [type(answer) for answer in answers] == [ZeroDivisionError] * 6
    assert isinstance(together(model.complete("yes", max_tokens=3, temperature=0))[0], Completion)


def test_logits_that_are_not_numbers_are_no_verdict(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    model.shares_prefixes = True
    with torch.no_grad():
        model.model.get_input_embeddings().weight.fill_(math.nan)  # type: ignore[union-attr]
    [judgement] = together(model.yes_probabilities("a", ["Is it?", "Or not?"]))
    assert [str(answer) for answer in judgement.probabilities] == ["the model's logits are not numbers"] * 2


@pytest.mark.parametrize(
    "options", [{"max_tokens": 0}, {"temperature": -0.1}, {"top_p": 0.0}, {"top_p": 1.1}, {"temperature": math.nan}]
)
def test_arguments_out_of_range(options: dict[str, Any], tiny: TransformersModel) -> None:
    [error] = together(tiny.complete("yes", **({"max_tokens": 3, "temperature": 1.0} | options)))
    assert isinstance(error, ConfigError)


def test_a_schema_that_cannot_guide_is_its_callers_error(tiny: TransformersModel) -> None:
    good, bad = together(
        tiny.complete("yes", max_tokens=3, temperature=0),
        tiny.complete("yes", max_tokens=3, temperature=0, json_schema={"type": "no such type"}),
    )
    assert isinstance(good, Completion)
    assert isinstance(bad, ConfigError)


def test_a_caller_that_gives_up_frees_the_worker(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    model.eos_token_ids = frozenset()

    async def main() -> str:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(model.complete("yes", max_tokens=8000, temperature=1.0), 0.3)
        return (await model.complete("yes", max_tokens=2, temperature=0)).text

    assert asyncio.run(asyncio.wait_for(main(), 20))


def test_the_model_can_be_trained_afterwards(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    together(*completions(model), model.yes_probabilities("a", WORDS))
    loss = model.model(input_ids=torch.tensor([[5, 6, 7]]), labels=torch.tensor([[5, 6, 7]])).loss
    loss.backward()
    assert all(weight.grad is not None for weight in model.model.parameters())
    assert not model.model.training


def test_judging_leaves_the_random_state_alone(tiny: TransformersModel) -> None:
    before = torch.get_rng_state()
    together(*completions(tiny), tiny.yes_probabilities("a", WORDS))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_model_belongs_to_its_process(tiny: TransformersModel) -> None:
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(tiny)
