import random

import numpy as np
import pytest
import torch

from openrlhf_dynamicrubric import EvaluatorConfig
from openrlhf_dynamicrubric.llm import load
from openrlhf_dynamicrubric.trl.judges import make_evaluator, random_state_kept, run_judges
from tests.scripted import ScriptedModel


def test_loading_leaves_the_random_numbers_alone(monkeypatch: pytest.MonkeyPatch):
    def load_model(name, **options):
        torch.rand(1)
        return ScriptedModel()

    monkeypatch.setattr(load, "load_model", load_model)
    before = torch.get_rng_state()
    make_evaluator(EvaluatorConfig(), generator=ScriptedModel())
    assert torch.equal(before, torch.get_rng_state())


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
