"""Where a checkpoint may lie, counted by hand and by the trainer itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openrlhf_dynamicrubric.errors import ConfigError, ModelLoadError
from openrlhf_dynamicrubric.trl import resume
from tests.tiny import build_tiny_model
from tests.trl.support import grpo_args


def args(folder: Path, **options: Any) -> Any:
    """4 completions a micro-step, groups of 4: one prompt a micro-step."""
    return grpo_args(folder, **{"save_strategy": "steps", "save_steps": 1, "max_steps": -1, **options})


def test_steps_of_an_epoch_count_generations_iterations_and_accumulation(tmp_path: Path) -> None:
    assert resume.updates_per_epoch(args(tmp_path), 6) == 6
    assert resume.updates_per_epoch(args(tmp_path, gradient_accumulation_steps=4), 6) == 1  # one generation of 4 prompts
    assert resume.updates_per_epoch(args(tmp_path, steps_per_generation=2, num_iterations=3), 6) == 18
    ragged = args(tmp_path, steps_per_generation=2, gradient_accumulation_steps=4)
    assert resume.updates_per_epoch(ragged, 6) == 2  # 6 micro-steps in updates of 4 and 2
    assert resume.total_updates(args(tmp_path, num_train_epochs=2.5), 6) == 15
    assert resume.total_updates(args(tmp_path, max_steps=7), 6) == 7


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"save_steps": 4, "max_steps": 10}, [4, 8, 10]),
        ({"save_steps": 0.25, "max_steps": 10}, [3, 6, 9, 10]),
        ({"save_steps": 500, "max_steps": 10}, [10]),
        ({"save_strategy": "epoch", "max_steps": 14}, [6, 12, 14]),
        ({"save_strategy": "no", "max_steps": 14}, []),
    ],
)
def test_saves_are_foreseen(tmp_path: Path, options: dict[str, Any], steps: list[int]) -> None:
    assert resume.saved_steps(args(tmp_path, **options), 6) == steps


@pytest.mark.parametrize(
    "options",
    [
        {"save_steps": 1, "max_steps": 9},
        {"save_steps": 4, "max_steps": 9, "steps_per_generation": 2, "num_iterations": 2},
        {"save_steps": 2, "max_steps": 9, "steps_per_generation": 4, "gradient_accumulation_steps": 2},
        {"save_steps": 3, "max_steps": 9, "logging_steps": 3},
        {"save_strategy": "epoch", "num_train_epochs": 3, "steps_per_generation": 2, "gradient_accumulation_steps": 4},
        {"save_strategy": "epoch", "logging_strategy": "epoch", "num_train_epochs": 3},
        {"save_strategy": "no", "save_steps": 3, "steps_per_generation": 2, "sync_ref_model": True, "beta": 0.1},
        {"save_steps": 5, "max_steps": 5, "steps_per_generation": 2},  # only the last, from which nothing is generated
    ],
)  # fmt: skip
def test_checkpoints_between_generations_and_logs_are_accepted(tmp_path: Path, options: dict[str, Any]) -> None:
    resume.check_exact_resume(args(tmp_path, **options), 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps_per_generation": 2, "max_steps": 9}, r"at step 1 .* between two generations, .* a multiple of 2 \("),
        ({"steps_per_generation": 2, "num_iterations": 2, "save_steps": 2, "max_steps": 9}, r"at step 2 .* a multiple of 4 \("),
        ({"save_steps": 2, "steps_per_generation": 3, "gradient_accumulation_steps": 1, "max_steps": 9}, r"a multiple of 3 \("),
        (
            {"save_steps": 2, "logging_steps": 4, "max_steps": 9},
            r"at step 2 .* between two logs, .* a multiple of logging_steps \(4",
        ),
        ({"save_steps": 2, "logging_strategy": "epoch", "max_steps": 9}, r"at step 2 would lie between two logs"),
        ({"save_only_model": True}, r"save_only_model: checkpoints without the optimiser's state cannot be continued"),
        ({"ignore_data_skip": True}, r"ignore_data_skip: prompts would come again"),
        ({"sync_ref_model": True, "beta": 0.1}, r"sync_ref_model: the moving reference model is not in a checkpoint"),
    ],
)
def test_others_are_refused_with_what_to_change(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        resume.check_exact_resume(args(tmp_path, **options), 6)
    assert str(caught.value).endswith('or save_strategy: "no", and an interrupted phase begins afresh')


def mark(folder: Path, step: int, **more: Any) -> Path:
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "optimizer.pt").write_text("moments")
    state = {"step": step, "total": 20, "epoch": 0.5, "seconds": 1.0, "files": {"optimizer.pt": 7}}
    (checkpoint / resume.MARK).write_text(json.dumps({**state, **more}))
    return checkpoint


def test_the_newest_whole_checkpoint_is_taken_and_cut_ones_go(tmp_path: Path) -> None:
    assert resume.newest_checkpoint(tmp_path) is None
    mark(tmp_path, 9)
    newest = mark(tmp_path, 10, epoch=2.5, seconds=4.0)
    (tmp_path / "checkpoint-11").mkdir()
    (tmp_path / "checkpoint-11/model.safetensors").write_text("half")
    removed_in_part = mark(tmp_path, 12)
    (removed_in_part / "optimizer.pt").unlink()
    (mark(tmp_path, 13) / "optimizer.pt").write_text("mom")
    assert resume.newest_checkpoint(tmp_path) == resume.Checkpoint(newest, 10, 20, 2.5, 4.0)
    resume.remove_incomplete(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-9"]


def test_a_model_is_copied_without_the_state_of_training(tmp_path: Path) -> None:
    checkpoint = build_tiny_model(tmp_path / "checkpoint-1")
    model = {path.name for path in checkpoint.iterdir()}
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "rng_state_0.pth", "trainer_state.json", resume.MARK):
        (checkpoint / name).write_text("state")
    (checkpoint / "global_step1").mkdir()
    resume.copy_model(checkpoint, tmp_path / "model")
    assert {path.name for path in (tmp_path / "model").iterdir()} == model


def test_architectures_are_compared_by_their_shape(tmp_path: Path) -> None:
    one, same = build_tiny_model(tmp_path / "one"), build_tiny_model(tmp_path / "same", seed=1)
    resume.check_same_architecture(one, str(same), what="it")
    wide = build_tiny_model(tmp_path / "wide", hidden_size=64)
    with pytest.raises(
        ModelLoadError, match=r"it \(.*wide\) has another architecture than .*one: hidden_size 64 instead of 32"
    ):
        resume.check_same_architecture(wide, str(one), what="it")
    with pytest.raises(ModelLoadError, match="it cannot be compared with"):
        resume.check_same_architecture(tmp_path / "none", str(one), what="it")
