"""The judges of a trainer: loaded beside it, and run without a trace in its random numbers or gradients."""

from __future__ import annotations

import random
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from openrlhf_dynamicrubric import aio
from openrlhf_dynamicrubric.display import model_name
from openrlhf_dynamicrubric.errors import ConfigError
from openrlhf_dynamicrubric.evaluator import Evaluator, EvaluatorConfig
from openrlhf_dynamicrubric.llm.base import LanguageModel

T = TypeVar("T")


def make_evaluator(
    config: EvaluatorConfig,
    *,
    generator: LanguageModel | None = None,
    verifier: LanguageModel | None = None,
    with_generator: bool = True,
) -> Evaluator:
    """The evaluator of a configuration; models that are not given are loaded by their names.

    Args:
        config: all options.
        generator: in place of the one that the configuration names.
        verifier: likewise.
        with_generator: False where only given rubrics are judged.

    Returns:
        The evaluator.

    Raises:
        ModelLoadError: a model cannot be loaded.
    """
    from openrlhf_dynamicrubric.llm import load

    with random_state_kept():
        if generator is None and verifier is None:
            return load.load_evaluator(config, with_generator=with_generator)

        def named(name: str) -> LanguageModel:
            return load.load_model(name, dtype=config.judge_dtype, batch_tokens=config.judge_batch_tokens)

        if with_generator:
            generator = generator or named(config.generator)
        return Evaluator(generator=generator, verifier=verifier or named(config.verifier), config=config)


def check_judge(judge: Any, role: str) -> LanguageModel:
    """The judge, if it can complete and answer yes or no.

    Raises:
        ConfigError: it is neither a name nor a language model.
    """
    if callable(getattr(judge, "complete", None)) and callable(getattr(judge, "yes_probabilities", None)):
        return judge
    raise ConfigError(f"{role} must be a name, a folder or a LanguageModel, got {type(judge).__name__}")


def judge_name(judge: Any) -> str:
    """What records call a judge or a model in training: never a path of this machine.

    Args:
        judge: a name, a folder, a LanguageModel (its `name`), or a loaded model (its `name_or_path`).
    """
    if isinstance(judge, str | Path):
        return model_name(str(judge))
    name = getattr(judge, "name", None) or getattr(judge, "name_or_path", None)
    return model_name(str(name)) if name else type(judge).__name__


def run_judges(work: Coroutine[Any, Any, T]) -> T:
    """The result of judging, with torch's, numpy's and Python's random state as it was, and without gradients."""
    with random_state_kept():
        return aio.run(_without_gradients(work))


async def _without_gradients(work: Coroutine[Any, Any, T]) -> T:
    import torch

    # Here and not in the caller: the mode belongs to a thread, and the work runs on another one.
    with torch.no_grad():
        return await work


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Afterwards the global generators of torch, numpy and Python stand where they stood: what is sampled next is unchanged."""
    import torch

    python, legacy = random.getstate(), np.random.get_state()
    cuda = [torch.cuda.current_device()] if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=cuda):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)
