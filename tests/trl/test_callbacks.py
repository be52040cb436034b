from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerControl, TrainerState

from openrlhf_dynamicrubric.trl import callbacks
from tests.trl.support import grpo_args


def state(step: int, *, total: int = 9, main: bool = True) -> TrainerState:
    return TrainerState(global_step=step, max_steps=total, epoch=step / 4, is_world_process_zero=main)


def test_progress_is_written_at_most_once_a_second_and_at_both_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(callbacks.time, "monotonic", lambda: clock[0])
    callback = callbacks.ProgressCallback(tmp_path, phase="train-policy")
    args, control = grpo_args(tmp_path), TrainerControl()
    seen = []
    callback.on_train_begin(args, state(4), control)
    for step in range(5, 10):
        clock[0] += 0.4
        callback.on_step_end(args, state(step), control)
        seen.append(json.loads((tmp_path / "progress.json").read_text())["step"])
    assert seen == [4, 4, 7, 7, 9]
    progress = json.loads((tmp_path / "progress.json").read_text())
    assert {key: progress[key] for key in ("phase", "unit", "first", "step", "total")} == {
        "phase": "train-policy", "unit": "steps", "first": 4, "step": 9, "total": 9,
    }  # fmt: skip
    assert progress["started"] > 1e9


def test_logs_become_records_and_the_closing_summary_does_not(tmp_path: Path) -> None:
    callback = callbacks.MetricsCallback(tmp_path / "records")
    args, control = grpo_args(tmp_path), TrainerControl()
    callback.on_log(args, state(1), control, logs={"loss": 0.5, "reward": float("nan"), "kl": None, "epoch": 0.25})
    callback.on_log(args, state(2), control, logs={"loss": float("inf")})
    callback.on_log(args, state(2), control, logs={"train_runtime": 9.0, "train_loss": 0.5})
    callback.on_log(args, state(3, main=False), control, logs={"loss": 0.5})
    rows = [json.loads(line) for line in (tmp_path / "records/metrics.jsonl").read_text().splitlines()]
    assert [(row["kind"], row["step"], row["loss"]) for row in rows] == [("metrics", 1, 0.5), ("metrics", 2, None)]
    assert (rows[0]["reward"], rows[0]["kl"], rows[0]["epoch"]) == (None, None, 0.25)


def test_a_checkpoint_is_marked_with_where_it_stands_by_the_first_process(tmp_path: Path) -> None:
    marks = callbacks.MarkCheckpoints(seconds_before=1000.0)
    args, control = grpo_args(tmp_path), TrainerControl()
    folder = tmp_path / "checkpoint-2"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner/weights").write_text("w")
    marks.on_save(args, state(2, main=False), control)
    assert not (folder / callbacks.MARK).exists()
    marks.on_save(args, state(2), control)
    mark: dict[str, Any] = json.loads((folder / callbacks.MARK).read_text())
    assert (mark["step"], mark["total"], mark["epoch"], mark["files"]) == (2, 9, 0.5, {"inner/weights": 1})
    assert mark["seconds"] >= 1000.0
