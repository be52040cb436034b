"""Tiny models for the tests of this folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from openrlhf_dynamicrubric.errors import RubricParseError
from openrlhf_dynamicrubric.llm.transformers_local import TransformersModel
from openrlhf_dynamicrubric.parsing import parse_rubric
from tests.tiny import build_tiny_model

WORDS = ("Names a date", "Gives a concrete example of it", "Avoids jargon", "Is short", "Has no list, no table and no heading")


def tiny_model(
    folder: Path, *, model_type: str = "llama", config: dict[str, Any] | None = None, **options: Any
) -> TransformersModel:
    """A random tiny model, sharper than it is made: its probabilities differ enough from 0.5 to be compared.

    Args:
        folder: where to save it.
        model_type: the architecture.
        config: entries of config.json that are changed before it is loaded.
        **options: of `TransformersModel.load`.
    """
    build_tiny_model(folder, model_type=model_type)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | (config or {})))
    model = TransformersModel.load(folder, device="cpu", **options)
    sharpen(model)
    return model


def sharpen(model: TransformersModel) -> None:
    """Makes a random model's answers depend on what it reads."""
    import torch

    with torch.no_grad():
        for weight in model.model.parameters():
            if weight.ndim > 1:
                weight.mul_(5)


def texts(count: int) -> list[str]:
    """Ragged texts that begin alike."""
    return [f"Judge this: {'word ' * (3 * number + 1)}end of {number}.\n\n" for number in range(count)]


def why_invalid(text: str, *, max_items: int) -> str:
    """Why a text is no valid rubric, in two words for what no schema can say and small models do; empty if it is one."""
    try:
        parse_rubric(text, max_items=max_items)
    except RubricParseError as error:
        known = re.search("says something|same criterion|position", str(error))
        return known[0] if known else str(error)
    return ""
