"""What both training commands do around their trainer: lock, resume, train, save, and say that it is done."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openrlhf_dynamicrubric import processes
from openrlhf_dynamicrubric.errors import DataError, PhaseError
from openrlhf_dynamicrubric.files import sync_folder, write_atomic
from openrlhf_dynamicrubric.phases import DONE, LOCK, MODULE
from openrlhf_dynamicrubric.records import RecordFile
from openrlhf_dynamicrubric.trl import resume
from openrlhf_dynamicrubric.trl.arguments import TrainingArguments, model_options
from openrlhf_dynamicrubric.trl.callbacks import MarkCheckpoints, MetricsCallback, ProgressCallback, sync_tree

if TYPE_CHECKING:
    from trl.trainer.grpo_trainer import GRPOTrainer

MODEL, MARK = "model", ".phase"


def run_phase(
    kind: str, argv: Sequence[str], arguments: TrainingArguments, make_trainer: Callable[[str, list[Any]], GRPOTrainer]
) -> None:
    """A training phase: afterwards its folder holds `model/`, `records/` and, written last, `done.json`.

    Goes on from the newest whole checkpoint, or begins afresh where there is none; either way the result is the same.

    Args:
        kind: the phase's command.
        argv: its words, for the record.
        arguments: its options.
        make_trainer: from the model's folder or name, and callbacks.

    Raises:
        PhaseError: another process works in the folder.
        ModelLoadError: a model cannot be loaded, or a checkpoint is of another architecture.
    """
    from openrlhf_dynamicrubric.llm.embedded import resolve_model

    folder = arguments.folder
    with processes.sole_worker(folder / LOCK):
        model = resolve_model(str(arguments.model.model_name_or_path))
        if processes.main_rank():
            claim(folder, argv)
            (folder / DONE).unlink(missing_ok=True)
            resume.remove_incomplete(folder)
        checkpoint = resume.newest_checkpoint(folder)
        if checkpoint:
            resume.check_same_architecture(checkpoint.folder, model, what=f"checkpoint-{checkpoint.step}")
        if processes.main_rank():
            drop_records(folder / "records", checkpoint.step if checkpoint else 0)
        marks = MarkCheckpoints(seconds_before=checkpoint.seconds if checkpoint else 0.0)
        if checkpoint and checkpoint.step >= checkpoint.total:
            if processes.main_rank():  # a trainer that resumes at its last step would train one more
                keep_model(folder, lambda target: resume.copy_model(checkpoint.folder, target))
        else:
            train(kind, arguments, model, checkpoint, marks, make_trainer)
        if processes.main_rank():
            write_done(folder, kind, argv, seconds=marks.seconds, artefact=folder / MODEL)


def claim(folder: Path, argv: Sequence[str]) -> None:
    """The folder is this phase's own from now on: what it holds was made with the same options, or it holds nothing.

    Args:
        folder: the phase's.
        argv: the command's words; of a `--config` file what it says counts, not where it lies, and a folder may be moved.

    Raises:
        PhaseError: there are checkpoints, a model or records of something else, which this phase would replace.
    """
    mark = folder / MARK
    words = [part for word in argv for part in (word.split("=", 1) if word.startswith("--") else [word])]
    if "--config" in words[:-1]:
        place = words.index("--config") + 1
        lines = Path(words[place]).read_text(encoding="utf-8").splitlines()
        words[place] = "\n".join(line for line in lines if not line.startswith(("#", "output_dir:")))
    if "--output_dir" in words[:-1]:
        del words[words.index("--output_dir") + 1]
    options = hashlib.sha256("\0".join(words).encode("utf-8", "replace")).hexdigest()
    if mark.exists() and mark.read_text(encoding="utf-8").strip() == options:
        return
    held = [path.name for pattern in ("checkpoint-*", MODEL, "records") for path in sorted(folder.glob(pattern))]
    if held:
        made = "this phase with other options" if mark.exists() else "something else"
        raise PhaseError(f"{folder} holds {', '.join(held)} of {made}, which would be replaced; use another output_dir")
    write_atomic(mark, options + "\n")


def train(
    kind: str,
    arguments: TrainingArguments,
    model: str,
    checkpoint: resume.Checkpoint | None,
    marks: MarkCheckpoints,
    make_trainer: Callable[[str, list[Any]], GRPOTrainer],
) -> None:
    """Trains to the last step and keeps the model."""
    folder = arguments.folder
    arguments.trainer.model_init_kwargs = model_options(arguments)
    callbacks = [MetricsCallback(folder / "records"), marks, ProgressCallback(folder, phase=kind)]
    trainer = make_trainer(model, callbacks)
    if checkpoint and isinstance(trainer, resume.ContinuedEpochs):
        trainer.epochs_done = int(checkpoint.epoch)
    trainer.train(resume_from_checkpoint=str(checkpoint.folder) if checkpoint else None)
    beside = folder / f"{MODEL}.tmp"
    if processes.main_rank():
        shutil.rmtree(beside, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    trainer.save_model(str(beside))
    trainer.accelerator.wait_for_everyone()
    if processes.main_rank():
        keep_model(folder, sync_tree)
    trainer.end()


def keep_model(folder: Path, write: Callable[[Path], None]) -> None:
    """`model/` is what `write` leaves in `model.tmp/`, if that is a whole model, or stays what it was.

    Raises:
        ModelLoadError: it is not whole; a sharded model that was not gathered, say.
    """
    from openrlhf_dynamicrubric.llm.checkpoint import check_checkpoint

    beside = folder / f"{MODEL}.tmp"
    if beside.exists() and write is not sync_tree:
        shutil.rmtree(beside)
    write(beside)
    check_checkpoint(beside)
    shutil.rmtree(folder / MODEL, ignore_errors=True)
    beside.rename(folder / MODEL)
    sync_folder(folder)


def drop_records(folder: Path, step: int) -> None:
    """Records of steps that are about to be repeated are gone: scores carry the steps done before, logs those done after."""
    for name, first in (("groups", step), ("rubrics", step), ("metrics", step + 1)):
        RecordFile(folder / f"{name}.jsonl").drop_from(first)


def write_done(folder: Path, kind: str, argv: Sequence[str], *, seconds: float, artefact: Path, **more: Any) -> None:
    """`done.json`: the phase is complete, and this is what it made."""
    done = {
        "command": f"python -m {MODULE} {kind} {shlex.join(argv)}",
        "seconds": round(seconds, 3),
        "peak_memory": processes.peak_memory(),
        "artefact": artefact.name,
        "sha256": content_digest(artefact),
        **more,
    }
    write_atomic(folder / DONE, json.dumps(done, indent=1) + "\n")


def content_digest(artefact: Path) -> str:
    """The sha256 of a file, or of a model's weights: its safetensors files, in order of their names."""
    import hashlib

    digest = hashlib.sha256()
    for path in sorted(artefact.glob("*.safetensors")) if artefact.is_dir() else [artefact]:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def policy_rows(rows: Sequence[dict[str, Any]], *, chat: bool) -> list[dict[str, Any]]:
    """Rows of a prompts file as TRL's trainer takes them: `prompt` and `id`.

    Args:
        rows: as `anchors.read_prompts` gives them.
        chat: put plain text into one user turn.

    Raises:
        DataError: plain text and chat turns stand side by side.

    Example:
        >>> policy_rows([{"prompt": "Hi", "id": "1", "kind": "greeting"}], chat=True)
        [{'prompt': [{'role': 'user', 'content': 'Hi'}], 'id': '1'}]
    """
    prompts = [as_prompt(row["prompt"], chat=chat) for row in rows]
    plain = [isinstance(prompt, str) for prompt in prompts]
    if any(plain) and not all(plain):
        raise DataError(
            f"prompt {rows[plain.index(True)]['id']} is plain text and prompt {rows[plain.index(False)]['id']} chat turns; "
            "make them alike, or set chat_prompts: true"
        )
    return [{"prompt": prompt, "id": row["id"]} for prompt, row in zip(prompts, rows, strict=True)]


def as_prompt(prompt: Any, *, chat: bool) -> Any:
    """The prompt as the policy is asked it."""
    return [{"role": "user", "content": prompt}] if chat and isinstance(prompt, str) else prompt
