"""A co-evolution run of models so small that a phase is mostly the loading of its packages, and what it leaves on disk."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.tiny import build_tiny_model

COEVOLVE = [sys.executable, "-m", "openrlhf_dynamicrubric", "coevolve", "--config"]
TIMES = {"time", "seconds", "step_time", "dynamicrubric/seconds"}


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DYNAMICRUBRIC_")}
    return {**kept, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}


def build_models(folder: Path) -> dict[str, str]:
    """Three models, one a role."""
    return {
        role: str(build_tiny_model(folder / role, seed=seed))
        for seed, role in enumerate(("policy", "generator", "verifier"), 1)
    }


def tiny_options(folder: Path, models: dict[str, str], **more: Any) -> dict[str, Any]:
    """Options of a run of two rounds, of few tokens and steps."""
    training = {
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "learning_rate": 1e-2,
        "max_steps": 4,
        "num_generations": 4,
        "per_device_train_batch_size": 4,
        "logging_steps": 1,
        "save_steps": 1,
        "entropy_coef": 0.01,  # the loss is never quite 0, whatever the judges say
    }
    return {
        "output_dir": str(folder),
        "rounds": 2,
        "max_anchor_prompts": 8,
        "max_policy_prompts": 2,  # so that training goes through the prompts more than once
        "chat_prompts": True,
        "models": models,
        # The tiny verifier's probabilities lie around this threshold, so that verdicts differ.
        "judge": {"verdict_threshold": 0.51, "max_items": 2, "max_criterion_chars": 12, "rubric_max_tokens": 64},
        "sample": {"num_responses": 4, "max_new_tokens": 40, "batch_prompts": 1},
        "generator": {**training, "max_completion_length": 64},
        "policy": {**training, "max_completion_length": 24},
        **more,
    }


def write_options(path: Path, options: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(options))  # JSON is YAML
    return path


def results(run: Path) -> dict[str, Any]:
    """What a run made, without times: file name to bytes, digest of tensors, or records."""
    found: dict[str, Any] = {}
    for path in sorted(run.glob("round-*/*/responses.jsonl")):
        found[str(path.relative_to(run))] = path.read_bytes()
    for path in sorted(run.glob("round-*/*/model")):
        found[str(path.relative_to(run))] = tensors_digest(path)
    for path in sorted(run.glob("round-*/*/records/*.jsonl")):
        found[str(path.relative_to(run))] = [without_times(json.loads(line)) for line in path.read_text().splitlines()]
    for path in sorted(run.glob("round-*/*/done.json")):
        found[str(path.relative_to(run))] = json.loads(path.read_text())["sha256"]
    return found


def tensors_digest(model: Path) -> str:
    from safetensors.numpy import load_file

    digest = hashlib.sha256()
    for path in sorted(model.glob("*.safetensors")):
        for name, tensor in sorted(load_file(path).items()):
            digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode() + tensor.tobytes())
    return digest.hexdigest()


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(inner) for key, inner in value.items() if key not in TIMES}
    return value
