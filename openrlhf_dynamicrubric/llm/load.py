"""Judges by name, each loaded once a process."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from openrlhf_dynamicrubric.evaluator import Evaluator, EvaluatorConfig
from openrlhf_dynamicrubric.llm.base import LanguageModel

if TYPE_CHECKING:
    from openrlhf_dynamicrubric.llm.transformers_local import TransformersModel

_lock = threading.Lock()
_loaded: dict[tuple[int, str, str], tuple[object, TransformersModel]] = {}


def load_model(name: str, *, dtype: str = "auto", batch_tokens: int = 16_384, judge: bool = True) -> LanguageModel:
    """The language model of that name, the same object for the same name and precision throughout a process.

    Args:
        name: `embedded`, a folder, or a name on a hub.
        dtype: "auto" (that of the checkpoint), "float32", "bfloat16" or "float16".
        batch_tokens: most tokens, padding included, in one forward pass; of several calls the smallest counts.
        judge: the model will be asked for rubrics or verdicts, not for plain completions alone.

    Returns:
        The model, ready to be asked.

    Raises:
        ModelLoadError: it cannot be loaded, or cannot judge (no chat template, no single token for yes or no).
        MissingDependencyError: a package that it needs is not installed.
    """
    from openrlhf_dynamicrubric.llm.checkpoint import require_transformers
    from openrlhf_dynamicrubric.llm.embedded import resolve_model

    require_transformers()
    from openrlhf_dynamicrubric.llm.transformers_local import TransformersModel

    with _lock:
        key = (os.getpid(), name, dtype)
        path = resolve_model(name)
        state = _files(path)
        known, model = _loaded.get(key, (None, None))
        if model is None or known != state:  # a folder may have been written anew since
            model = TransformersModel.load(path, dtype=dtype, batch_tokens=batch_tokens, name=name)
            _loaded[key] = (state, model)
        model.batch_tokens = min(model.batch_tokens, batch_tokens)
    if judge:
        model.check_judge()
    return model


def _files(path: str) -> tuple[tuple[str, int, int], ...]:
    """What tells whether a model's folder was written anew; empty for a name on a hub."""
    found = [(file.name, file.stat()) for file in sorted(Path(path).glob("*")) if file.is_file()]
    return tuple((name, state.st_size, state.st_mtime_ns) for name, state in found)


def load_evaluator(config: EvaluatorConfig, *, with_generator: bool = True) -> Evaluator:
    """The evaluator that a configuration describes, with its models loaded.

    Args:
        config: all options.
        with_generator: False where only given rubrics are judged.

    Returns:
        The evaluator; a generator and a verifier of the same name share one model.

    Raises:
        ModelLoadError, MissingDependencyError: see `load_model`.
    """
    options = {"dtype": config.judge_dtype, "batch_tokens": config.judge_batch_tokens}
    generator = load_model(config.generator, **options) if with_generator else None
    return Evaluator(generator=generator, verifier=load_model(config.verifier, **options), config=config)
