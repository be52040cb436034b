"""One rank of several: trains a step and writes down its advantages and its weights.

Usage: rank_train.py policy|generator|broken MODEL_FOLDER OUT_FOLDER PER_DEVICE GROUP_SIZE

`broken` is the generator's training with a verifier that has a fault of its own on rank 1.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.trl.support import Advantages, coin, coin_model, grpo_args

SETS = [
    {"prompt": "Name a fruit.", "responses": ["apple", "a stone"], "anchors": ["apple", "peach", "mud"], "id": "fruit"},
    {"prompt": "Count.", "responses": ["1 2", "2 1"], "anchors": ["1 2 3", "3"], "id": "count"},
    {"prompt": "Greet.", "responses": ["Hi", "Go"], "anchors": ["Hello", "Hi", "Go"], "id": "greet"},
    {"prompt": "Greet.", "responses": ["Hi", "Go"], "anchors": ["Hello", "Hi", "Go"], "id": "greet again"},
]


def make_policy_trainer(model: str, out: Path, options: dict[str, Any]) -> tuple[Any, Any]:
    from datasets import Dataset
    from trl.trainer.grpo_trainer import GRPOTrainer

    from openrlhf_dynamicrubric.trl import DynamicRubricReward

    judge = coin_model()
    dataset = Dataset.from_list([{"prompt": prompt} for prompt in ("say a", "say b", "say c", "say c")])
    options |= {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 2, "num_generations_eval": 2}
    trainer = GRPOTrainer(
        model,
        reward_funcs=DynamicRubricReward(judge, judge, records=out / "records"),
        args=grpo_args(out, **options),
        train_dataset=dataset,
        eval_dataset=dataset,
    )
    return trainer, judge


def make_generator_trainer(model: str, out: Path, options: dict[str, Any]) -> tuple[Any, Any]:
    from openrlhf_dynamicrubric import EvaluatorConfig
    from openrlhf_dynamicrubric.trl import RubricGeneratorTrainer
    from tests.scripted import ScriptedModel

    judge = ScriptedModel(judge=coin)
    trainer = RubricGeneratorTrainer(
        model,
        args=grpo_args(out, max_completion_length=40, **options),
        train_dataset=SETS,
        config=EvaluatorConfig(max_items=2, max_criterion_chars=8),
        verifier=judge,
        records=out / "records",
    )
    return trainer, judge


def main() -> None:
    kind, model, folder, per_device, size = sys.argv[1:6]
    out = Path(folder)
    options = {"per_device_train_batch_size": int(per_device), "num_generations": int(size)}
    make = make_policy_trainer if kind == "policy" else make_generator_trainer
    trainer, judge = make(model, out, options)
    if kind == "broken" and trainer.accelerator.process_index == 1:
        judge.judge = lambda response, criterion: 1 // 0
    seen = Advantages(trainer)
    trainer.train()
    result = {
        "advantages": seen.rows,
        "prompts": seen.prompts,
        "texts": seen.texts,
        "written": len(judge.written),
        "weights": sum(float(weight.double().abs().sum()) for weight in trainer.model.parameters()),
        "logs": trainer.state.log_history,
    }
    (out / f"rank{trainer.accelerator.process_index}.json").write_text(json.dumps(result))
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()
    sys.stderr.flush()
    os._exit(0)  # all is written; torch's threads now and then abort an interpreter that ends by itself


if __name__ == "__main__":
    main()
