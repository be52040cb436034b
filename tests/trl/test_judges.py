import os
import random

import numpy as np
import pytest
import torch
from transformers.distributed import fsdp
from transformers.integrations import deepspeed

from openrlhf_dynamicrubric import EvaluatorConfig
from openrlhf_dynamicrubric.llm import load
from openrlhf_dynamicrubric.trl.judges import make_evaluator, random_state_kept, run_judges, without_sharded_loading
from tests.scripted import ScriptedModel


class Zero3:
    def is_zero3(self):
        return True


@pytest.fixture
def sharding(monkeypatch: pytest.MonkeyPatch):
    """As transformers finds things in a trainer under ZeRO-3 and FSDP, here both at once: how many of the two are on."""
    config = Zero3()
    monkeypatch.setattr(deepspeed, "_hf_deepspeed_config_weak_ref", lambda: config)
    monkeypatch.setattr(fsdp, "_is_torch_distributed_initialized", lambda: True)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "true")
    return lambda: [deepspeed.is_deepspeed_zero3_enabled(), fsdp.is_fsdp_enabled()]


def test_judges_are_loaded_whole_where_the_trainers_model_is_sharded(sharding, monkeypatch: pytest.MonkeyPatch):
    sharded = []

    def load_model(name, **options):
        sharded.append(sharding())
        torch.rand(1)
        return ScriptedModel()

    monkeypatch.setattr(load, "load_model", load_model)
    before = torch.get_rng_state()
    make_evaluator(EvaluatorConfig(), generator=ScriptedModel())
    assert sharded == [[False, False]]
    assert sharding() == [True, True]
    assert torch.equal(before, torch.get_rng_state())


def test_sharding_is_back_after_an_error(sharding):
    with pytest.raises(ZeroDivisionError), without_sharded_loading():
        1 // 0  # noqa: B018
    assert sharding() == [True, True]


def test_nothing_is_left_where_nothing_was(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("FSDP_CPU_RAM_EFFICIENT_LOADING", raising=False)
    with without_sharded_loading():
        pass
    assert "FSDP_CPU_RAM_EFFICIENT_LOADING" not in os.environ
    assert deepspeed._hf_deepspeed_config_weak_ref is None


def test_random_numbers_go_on_as_if_nothing_had_been_drawn():
    def draw():
        return torch.rand(1).item(), float(np.random.rand()), random.random()

    def seed():
        torch.manual_seed(1), np.random.seed(1), random.seed(1)

    seed()
    expected = draw()
    seed()
    with random_state_kept():
        draw()
    assert draw() == expected
    seed()
    with pytest.raises(IndexError), random_state_kept():
        [].pop(int(draw()[0]))
    assert draw() == expected


def test_errors_of_judges_come_through():
    async def work():
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        run_judges(work())


def test_without_a_generator_none_is_loaded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(load, "load_model", lambda *_, **__: pytest.fail("nothing should be loaded"))
    evaluator = make_evaluator(EvaluatorConfig(), verifier=ScriptedModel(), with_generator=False)
    assert evaluator.generator is None
