"""Options, judges and rows for the TRL tests, also for the scripts that they launch in several processes."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

from openrlhf_dynamicrubric.errors import ModelCallError
from openrlhf_dynamicrubric.prompts import conversation_text
from openrlhf_dynamicrubric.types import Prompt
from tests.scripted import ScriptedModel


def grpo_args(folder: Path | str, **options: Any) -> Any:
    """Options of a short training run on the CPU."""
    from trl.trainer.grpo_config import GRPOConfig

    defaults = {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "max_steps": 1,
        "num_generations": 4,
        "per_device_train_batch_size": 4,
        "max_completion_length": 12,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }
    return GRPOConfig(**{**defaults, **options})


def coin(response: str, criterion: str) -> float:
    """P(yes) of 0.9 or 0.1 that depends on the pair alone: a judge for text that nobody can foresee."""
    return 0.9 if zlib.crc32(f"{response}\0{criterion}".encode()) % 2 else 0.1


def coin_rubric(prompt: Prompt, seed: int) -> str:
    """A rubric that depends on the prompt alone, so that two groups have different ones."""
    mark = zlib.crc32(conversation_text(prompt).encode()) % 10_000
    items = [{"criterion": f"Criterion {mark} {letter}", "weight": weight} for letter, weight in (("a", 5), ("b", 3), ("c", 1))]
    return json.dumps({"items": items})


def coin_model() -> ScriptedModel:
    """Generator and verifier in one, whose scores nobody can foresee and everybody can repeat."""
    return ScriptedModel(coin_rubric, coin)


def down(*_: Any) -> Any:
    """A judge that is not there."""
    raise ModelCallError("the judge is down")


class Advantages:
    """Keeps what a trainer's step computed, rows in order, before TRL shuffles them."""

    def __init__(self, trainer: Any) -> None:
        self.rows: list[float] = []
        self.texts: list[str] = []
        self.prompts: list[Any] = []
        plain = trainer._generate_and_score_completions

        def spy(inputs: list[dict[str, Any]]) -> Any:
            output = plain(inputs)
            self.rows += output["advantages"].tolist()
            self.prompts += [row["prompt"] for row in inputs]
            tokens = [ids[mask.bool()] for ids, mask in zip(output["completion_ids"], output["completion_mask"], strict=True)]
            self.texts += trainer.processing_class.batch_decode(tokens, skip_special_tokens=True)
            return output

        trainer._generate_and_score_completions = spy
