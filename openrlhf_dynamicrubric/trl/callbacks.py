"""What a trainer leaves on disk as it goes: progress, metrics, and marks on checkpoints that are whole."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers import TrainingArguments as HFArguments

from openrlhf_dynamicrubric import processes
from openrlhf_dynamicrubric.files import sync_folder, write_atomic
from openrlhf_dynamicrubric.phases import PROGRESS
from openrlhf_dynamicrubric.records import RecordFile

MARK = "complete.json"
"""In a checkpoint's folder once every process has written its part of it."""


class ProgressFile:
    """`progress.json` of a phase, written at most once a second.

    Args:
        folder: the phase's.
        phase: its kind.
        unit: what is counted.
    """

    def __init__(self, folder: Path, *, phase: str, unit: str) -> None:
        self.path = folder / PROGRESS
        self.head = {"phase": phase, "unit": unit}
        self._written = 0.0

    def begin(self, step: int, total: int) -> None:
        """The phase stands at `step` of `total`; times left are counted from here."""
        self.head |= {"first": step, "started": time.time()}
        self.update(step, total, now=True)

    def update(self, step: int, total: int, *, now: bool = False) -> None:
        """The phase has reached `step`."""
        if now or step == total or time.monotonic() - self._written >= 1.0:
            self._written = time.monotonic()
            state = {**self.head, "step": step, "total": total, "updated": time.time()}
            write_atomic(self.path, json.dumps(state) + "\n")


class ProgressCallback(TrainerCallback):
    """Keeps `progress.json` of a training phase.

    Args:
        folder: the phase's.
        phase: its kind.
    """

    def __init__(self, folder: Path, *, phase: str) -> None:
        self.file = ProgressFile(folder, phase=phase, unit="steps")

    def on_train_begin(self, args: HFArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The step that training begins at, or goes on from."""
        if state.is_world_process_zero:
            self.file.begin(state.global_step, state.max_steps)

    def on_step_end(self, args: HFArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """One step more."""
        if state.is_world_process_zero:
            self.file.update(state.global_step, state.max_steps)


class MetricsCallback(TrainerCallback):
    """Writes what the trainer logs to `records/metrics.jsonl`, one record a log.

    Args:
        folder: of records.
    """

    def __init__(self, folder: Path) -> None:
        self.records = RecordFile(folder / "metrics.jsonl")

    def on_log(
        self, args: HFArguments, state: TrainerState, control: TrainerControl, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Numbers that JSON does not know become null. The trainer's closing summary is left out: after a resume it covers
        only the steps since."""
        if state.is_world_process_zero and logs and "train_runtime" not in logs:
            self.records.append(
                [{"kind": "metrics", **{name: _number(value) for name, value in logs.items()}}], step=state.global_step
            )


class MarkCheckpoints(TrainerCallback):
    """Marks a checkpoint as whole once every process has written its part, and all of it is on the disk.

    Args:
        seconds_before: time that earlier attempts spent on the steps up to now, in seconds.
    """

    def __init__(self, *, seconds_before: float = 0.0) -> None:
        self.started = processes.STARTED - seconds_before

    @property
    def seconds(self) -> float:
        """Time spent on the phase, attempts that went on from each other together."""
        return time.monotonic() - self.started

    def on_save(self, args: HFArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The mark of the checkpoint that was saved last."""
        from accelerate import PartialState

        PartialState().wait_for_everyone()
        if not state.is_world_process_zero:
            return
        folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        sync_tree(folder)
        mark = {
            "step": state.global_step,
            "total": state.max_steps,
            "epoch": state.epoch,
            "seconds": round(self.seconds, 3),
            "files": file_sizes(folder),
        }
        write_atomic(folder / MARK, json.dumps(mark) + "\n")


def file_sizes(folder: Path) -> dict[str, int]:
    """The size of each file under the folder, in bytes, by its path from there."""
    return {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}


def sync_tree(folder: Path) -> None:
    """Every file under the folder survives a power cut."""
    for path in folder.rglob("*"):
        if path.is_dir():
            sync_folder(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())
    sync_folder(folder)


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
