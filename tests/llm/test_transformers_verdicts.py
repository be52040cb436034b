"""Questions behind a shared prefix against the same questions one by one."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from pathlib import Path

import pytest
import torch

from openrlhf_dynamicrubric.llm import transformers_verdicts
from openrlhf_dynamicrubric.llm.transformers_local import TransformersModel
from openrlhf_dynamicrubric.llm.transformers_verdicts import SharedRow, plain_log_odds, shared_log_odds, sharing_error
from tests.llm.support import WORDS, texts, tiny_model

SHARING = ["llama", "qwen2", "qwen3", "gpt_neox", "gpt2", "opt", "gemma2", "phi3"]
NOT_SHARING = ["bloom", "mamba"]


def ragged_rows(seed: int, *, rows: int = 5, longest: int = 60, suffixes: int = 6, suffix: int = 20) -> list[SharedRow]:
    source = random.Random(seed)

    def tokens(most: int) -> list[int]:
        return [source.randrange(3, 300) for _ in range(source.randint(1, most))]

    return [SharedRow(tokens(longest), [tokens(suffix) for _ in range(source.randint(1, suffixes))]) for _ in range(rows)]


def one_by_one(model: TransformersModel, rows: list[SharedRow]) -> list[list[float]]:
    """The slow way, without padding and without a batch."""
    return [
        [plain_log_odds(model.model, [row.prefix + suffix], model.answer_tokens, pad_token_id=0)[0] for suffix in row.suffixes]
        for row in rows
    ]


def shared(model: TransformersModel, rows: list[SharedRow]) -> list[list[float]]:
    return shared_log_odds(model.model, rows, model.answer_tokens, pad_token_id=0)


def flat(values: list[list[float]]) -> list[float]:
    return [value for row in values for value in row]


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("model_type", SHARING)
def test_shared_prefix_gives_what_whole_sequences_give(model_type: str, tmp_path: Path) -> None:
    model = tiny_model(tmp_path, model_type=model_type)
    rows = ragged_rows(1)
    expected = flat(one_by_one(model, rows))
    assert flat(shared(model, rows)) == pytest.approx(expected, abs=1e-5 * max(map(abs, expected)))
    assert max(expected) - min(expected) > 0.05, "values that are all alike would prove nothing"


@pytest.mark.parametrize("seed", range(6))
def test_any_shape_of_batch(seed: int, tiny: TransformersModel) -> None:
    rows = ragged_rows(seed, rows=1 + seed, longest=1 + 40 * seed, suffixes=1 + 3 * seed)
    assert flat(shared(tiny, rows)) == pytest.approx(flat(one_by_one(tiny, rows)), abs=1e-4)


def test_many_suffixes_go_in_groups(tiny: TransformersModel, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ragged_rows(3, rows=3, suffixes=12)
    whole = flat(shared(tiny, rows))
    monkeypatch.setattr(transformers_verdicts, "COLUMNS", 25)
    assert flat(shared(tiny, rows)) == pytest.approx(whole, abs=1e-4)
    lengths = [[len(suffix) for suffix in row.suffixes] for row in rows]
    assert transformers_verdicts.shared_columns(lengths) <= 25
    assert transformers_verdicts.shared_columns([[40, 3], [2]]) == 40  # one that is larger goes by itself


def test_a_suffix_sees_nothing_of_another(tiny: TransformersModel) -> None:
    prefix, suffix = [5, 6, 7, 8], [9, 10, 11]
    beside = [[200, 201, 202], [3, 4, 5]]
    answers = [shared(tiny, [SharedRow(prefix, [suffix, other])])[0][0] for other in beside]
    assert answers[0] == answers[1]


def test_answers_come_in_the_order_of_the_questions(tiny: TransformersModel) -> None:
    suffixes = [[9], [10, 11, 12, 13], [14, 15]]
    forward = shared(tiny, [SharedRow([5, 6], suffixes)])[0]
    backward = shared(tiny, [SharedRow([5, 6], suffixes[::-1])])[0]
    assert forward == pytest.approx(backward[::-1], abs=1e-5)
    assert len(set(forward)) == 3


def ask(model: TransformersModel, count: int = 3) -> list[float]:
    async def all_at_once() -> list[float]:
        judgements = await asyncio.gather(*(model.yes_probabilities(text, WORDS) for text in texts(count)))
        return [answer for judgement in judgements for answer in judgement.probabilities]  # type: ignore[misc]

    return asyncio.run(all_at_once())


def naive(model: TransformersModel, count: int = 3) -> list[float]:
    sequences = [tokens for text in texts(count) for tokens in model.chat.questions(text, WORDS)]
    odds = [plain_log_odds(model.model, [tokens], model.answer_tokens, pad_token_id=0)[0] for tokens in sequences]
    return [1 / (1 + math.exp(-value)) for value in odds]


@pytest.mark.parametrize("model_type", NOT_SHARING)
def test_architectures_that_cannot_share_are_asked_plainly(
    model_type: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_model(tmp_path, model_type=model_type)
    assert ask(model) == pytest.approx(naive(model), abs=1e-5)
    ask(model)
    assert [record.levelno for record in caplog.records if "cannot share" in record.getMessage()] == [logging.WARNING]


@pytest.mark.parametrize("window", [16, 64, 200])
def test_sliding_windows_are_honoured(window: int, tmp_path: Path) -> None:
    model = tiny_model(tmp_path, model_type="mistral", config={"sliding_window": window})
    assert model.model.config.sliding_window == window
    unlimited = tiny_model(tmp_path / "unlimited", model_type="mistral", config={"sliding_window": None})
    expected = naive(model)
    assert ask(model) == pytest.approx(expected, abs=1e-5)
    if window < 100:
        assert expected != pytest.approx(naive(unlimited), abs=1e-3), "the window has to matter"


def test_no_row_is_longer_than_the_window(tmp_path: Path) -> None:
    model = tiny_model(tmp_path, model_type="mistral", config={"sliding_window": 64})
    long, short = "Judge this long one: " + "word " * 40, ""

    async def both() -> list[int]:
        judgements = await asyncio.gather(*(model.yes_probabilities(text, ["Is it?", "No?"]) for text in (long, short)))
        return [judgement.usage.cached_tokens for judgement in judgements]

    saved = asyncio.run(both())
    assert saved[0] == 0
    assert saved[1] > 0


def test_a_mask_that_is_not_honoured_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_model(tmp_path)
    mask = transformers_verdicts._Slots.mask
    monkeypatch.setattr(transformers_verdicts._Slots, "mask", lambda *arguments: torch.zeros_like(mask(*arguments)))
    assert sharing_error(model.model, model.answer_tokens, pad_token_id=0) > 0.01
    assert ask(model) == pytest.approx(naive(model), abs=1e-5)
    assert "cannot share" in caplog.text


def test_an_architecture_that_refuses_the_mask_is_asked_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("attention_mask must have two dimensions")

    model = tiny_model(tmp_path)
    monkeypatch.setattr(transformers_verdicts._Slots, "mask", refuse)
    assert ask(model) == pytest.approx(naive(model), abs=1e-5)
    assert "must have two dimensions" in caplog.text


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_still_shares(dtype: str, tmp_path: Path) -> None:
    model = tiny_model(tmp_path, dtype=dtype)
    ask(model)
    assert model.shares_prefixes
