"""Sampling: the right distribution, each row on its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from openrlhf_dynamicrubric.llm.transformers_decode import Row, decode, draw_processors, gumbel, uniform
from openrlhf_dynamicrubric.llm.transformers_local import TransformersModel
from tests.llm.support import tiny_model

CPU = torch.device("cpu")


def rows(count: int, *, temperature: float = 1.0, top_p: float = 1.0) -> list[Row]:
    return [Row([1], 1, temperature, top_p, seed) for seed in range(count)]


def shares(logits: list[float], *, draws: int = 20_000, **options: float) -> np.ndarray:
    processors = draw_processors(rows(draws, **options), 1)
    drawn = processors(torch.ones(draws, 1, dtype=torch.long), torch.tensor(logits).float().repeat(draws, 1)).argmax(-1).numpy()
    return np.bincount(drawn, minlength=len(logits)) / draws


def test_draws_follow_the_softmax() -> None:
    logits = [0.0, 1.0, 2.0, -1.0]
    expected = np.exp(logits) / np.exp(logits).sum()
    assert shares(logits) == pytest.approx(expected, abs=0.012)  # 3 standard errors of 20,000 draws


def test_temperature_sharpens() -> None:
    logits = np.array([0.0, 1.0])
    expected = np.exp(2 * logits) / np.exp(2 * logits).sum()
    assert shares(logits.tolist(), temperature=0.5) == pytest.approx(expected, abs=0.012)


def test_temperature_zero_takes_the_largest() -> None:
    assert shares([0.0, 0.3, 0.2], draws=200, temperature=0.0).tolist() == [0, 1, 0]


def test_nucleus_is_the_smallest_set_that_reaches_top_p() -> None:
    logits = np.log([0.5, 0.3, 0.15, 0.05])
    assert shares(logits.tolist(), top_p=0.6) == pytest.approx([0.625, 0.375, 0, 0], abs=0.012)
    assert shares(logits.tolist(), top_p=1e-6).tolist() == [1, 0, 0, 0]


def test_noise_depends_on_seed_step_and_token_alone() -> None:
    alone = gumbel([(7, 3)], 500, CPU)
    assert torch.equal(gumbel([(1, 0), (7, 3)], 500, CPU)[1], alone[0])
    assert torch.equal(gumbel([(7, 3)], 800, CPU)[0, :500], alone[0])
    for other in ((8, 3), (7, 4), (-7, 3), (7 + 2**32, 3)):
        assert not torch.equal(gumbel([other], 500, CPU), alone)


def test_noise_is_gumbel_and_uncorrelated() -> None:
    noise = gumbel([(seed, step) for seed in range(20) for step in range(20)], 500, CPU).numpy()
    assert noise.mean() == pytest.approx(0.5772, abs=0.01)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.02)
    assert np.isfinite(noise).all()
    neighbours = np.corrcoef(noise[:, 1:].ravel(), noise[:, :-1].ravel())[0, 1]
    steps = np.corrcoef(noise[1:].ravel(), noise[:-1].ravel())[0, 1]
    assert abs(neighbours) < 0.01
    assert abs(steps) < 0.01


def test_noise_is_finite_for_every_bit_pattern() -> None:
    bits = torch.tensor([0, 1, -1, 2**31 - 1, -(2**31), 0x7FFFFF00, 511, 512], dtype=torch.int32)
    values = uniform(bits)
    assert ((values > 0) & (values < 1)).all()
    assert values.log().neg().log().neg().isfinite().all()


def test_noise_stays_what_it_is() -> None:
    """Seeds in records keep their meaning from release to release and from machine to machine."""
    expected = [[-0.300234, -0.022286, -0.011758], [-0.574407, -0.455474, 0.393201]]
    assert gumbel([(0, 0), (1, 5)], 3, CPU).numpy() == pytest.approx(np.array(expected), abs=1e-5)


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gpt2", "mistral", "gemma2", "bloom", "mamba", "falcon_h1"])
def test_greedy_is_what_transformers_generates(model_type: str, tmp_path: Path) -> None:
    model = tiny_model(tmp_path, model_type=model_type, config={"sliding_window": 16} if model_type == "mistral" else None)
    prompts = ["hi", "yes no " * 12, "Judge one response"]

    async def together() -> list[str]:
        return [c.text for c in await asyncio.gather(*(model.complete(p, max_tokens=24, temperature=0) for p in prompts))]

    expected = []
    for prompt in prompts:
        inputs = model.tokenizer(prompt, return_tensors="pt")
        with torch.inference_mode():
            output = model.model.generate(
                input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=24, do_sample=False
            )
        expected.append(model.tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
    assert asyncio.run(together()) == expected
    assert len(set(expected)) == 3


def test_rows_of_one_batch_may_differ_in_length(tiny: TransformersModel) -> None:
    lengths = [2, 9, 4]
    batch = [Row([5 + n, 6], most, 1.0, 1.0, n) for n, most in enumerate(lengths)]
    with torch.inference_mode():
        decode(tiny.model, batch, pad_token_id=0, eos_token_ids=frozenset())
    assert [len(row.written) for row in batch] == lengths
    assert not any(row.ended for row in batch)


def test_a_row_that_nobody_waits_for_stops(tiny: TransformersModel) -> None:
    asked = []

    def abandoned() -> bool:
        asked.append(1)
        return len(asked) > 6

    row = Row([5, 6], 1000, 1.0, 1.0, 0, abandoned=abandoned)
    with torch.inference_mode():
        decode(tiny.model, [row], pad_token_id=0, eos_token_ids=frozenset())
    assert 1 <= len(row.written) < 10
