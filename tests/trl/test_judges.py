import random

import numpy as np
import pytest
import torch
from transformers.integrations import deepspeed

from openrlhf_dynamicrubric import EvaluatorConfig
from openrlhf_dynamicrubric.llm import load
from openrlhf_dynamicrubric.trl.judges import make_evaluator, random_state_kept, run_judges, without_sharded_loading
from tests.scripted import ScriptedModel


class Zero3:
    def is_zero3(self):
        return True


def test_judges_are_loaded_whole_where_the_trainers_model_is_sharded(monkeypatch: pytest.MonkeyPatch):
    config = Zero3()
    monkeypatch.setattr(deepspeed, "_hf_deepspeed_config_weak_ref", lambda: config)
    sharded = []

    def load_model(name, **options):
        sharded.append(deepspeed.is_deepspeed_zero3_enabled())
        torch.rand(1)
        return ScriptedModel()

    monkeypatch.setattr(load, "load_model", load_model)
    before = torch.get_rng_state()
    make_evaluator(EvaluatorConfig(), generator=ScriptedModel())
    assert sharded == [False]
    assert deepspeed.is_deepspeed_zero3_enabled()
    assert torch.equal(before, torch.get_rng_state())


def test_sharding_is_back_after_an_error(monkeypatch: pytest.MonkeyPatch):
    config = Zero3()
    monkeypatch.setattr(deepspeed, "_hf_deepspeed_config_weak_ref", lambda: config)
    with pytest.raises(ZeroDivisionError), without_sharded_loading():
        1 // 0  # noqa: B018
    assert deepspeed.is_deepspeed_zero3_enabled()


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
