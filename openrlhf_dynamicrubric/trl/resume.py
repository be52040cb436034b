"""Training that goes on from a checkpoint as if it had never stopped, and what would keep it from doing so."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openrlhf_dynamicrubric.errors import ConfigError, ModelLoadError
from openrlhf_dynamicrubric.phases import read_json
from openrlhf_dynamicrubric.trl.callbacks import MARK, file_sizes, sync_tree

if TYPE_CHECKING:
    from trl.trainer.grpo_config import GRPOConfig

NOT_THE_MODEL = ("optimizer*", "scheduler*", "scaler*", "rng_state*", "trainer_state.json", "global_step*", "latest", MARK)
"""What a checkpoint's folder holds beside the model."""

SHAPE = ("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that is whole.

    Args:
        folder: where it is.
        step: update steps done.
        total: update steps of the whole phase.
        epoch: passes over the data done, with fractions.
        seconds: time spent up to it.
    """

    folder: Path
    step: int
    total: int
    epoch: float
    seconds: float


class ContinuedEpochs:
    """Mixin for GRPOTrainer: the order of prompts goes on where a checkpoint left it, also after the first epoch.

    Overrides `_get_train_sampler`: its sampler draws one order an epoch from a generator of its own, which no checkpoint
    keeps, so that a resumed training would begin again with the first epoch's order.
    """

    epochs_done = 0

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        import torch

        sampler = super()._get_train_sampler(dataset)  # pyright: ignore[reportAttributeAccessIssue]
        if getattr(sampler, "shuffle", False):
            for _ in range(self.epochs_done):
                torch.randperm(sampler.num_samples, generator=sampler.generator)
        return sampler


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """The last checkpoint of a phase that is whole; None where there is none."""
    found = [checkpoint for path in folder.glob("checkpoint-*") if (checkpoint := whole_checkpoint(path))]
    return max(found, key=lambda checkpoint: checkpoint.step, default=None)


def whole_checkpoint(folder: Path) -> Checkpoint | None:
    """The checkpoint in a folder; None where writing it, or removing it, was cut short."""
    mark = read_json(folder / MARK)
    if not mark:
        return None
    sizes = file_sizes(folder)
    if any(sizes.get(name) != size for name, size in mark.pop("files").items()):
        return None
    return Checkpoint(folder, **mark)


def remove_incomplete(folder: Path) -> None:
    """Checkpoints that a crash cut short are gone."""
    for checkpoint in folder.glob("checkpoint-*"):
        if not whole_checkpoint(checkpoint):
            shutil.rmtree(checkpoint)


def copy_model(checkpoint: Path, target: Path) -> None:
    """The model in a checkpoint, without the state of training."""
    shutil.copytree(checkpoint, target, ignore=shutil.ignore_patterns(*NOT_THE_MODEL))
    sync_tree(target)


def updates_per_epoch(args: GRPOConfig, prompts: int) -> int:
    """Update steps of one pass over the data.

    Args:
        args: the trainer's options.
        prompts: rows of the training dataset.
    """
    return max(1, math.ceil(_micro_steps_per_epoch(args, prompts) / args.gradient_accumulation_steps))


def total_updates(args: GRPOConfig, prompts: int) -> int:
    """Update steps of the whole phase, as the trainer counts them."""
    return args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * updates_per_epoch(args, prompts))


def saved_steps(args: GRPOConfig, prompts: int) -> list[int]:
    """The steps after which the trainer saves a checkpoint."""
    total = total_updates(args, prompts)
    strategy = str(getattr(args.save_strategy, "value", args.save_strategy))
    if strategy == "no":
        return []
    if strategy == "epoch":
        return sorted({*range(updates_per_epoch(args, prompts), total, updates_per_epoch(args, prompts)), total})
    return sorted({*range(_steps(args.save_steps, total), total, _steps(args.save_steps, total)), total})


def check_exact_resume(args: GRPOConfig, prompts: int) -> None:
    """Nothing, if training that goes on from any of its checkpoints gives what it would have given without a stop.

    Generations are not in a checkpoint, so one may only be saved where the next step generates anew; and what is averaged
    for a log is not, so one may only be saved where the averages begin anew.

    Args:
        args: the trainer's options.
        prompts: rows of the training dataset.

    Raises:
        ConfigError: it would not; the message says what to change.
    """
    strategy = str(getattr(args.save_strategy, "value", args.save_strategy))
    if strategy == "no":
        return
    hint = '; or save_strategy: "no", and an interrupted phase begins afresh'
    if strategy not in ("steps", "epoch"):
        raise ConfigError(
            f'save_strategy {strategy}: it cannot be known whether its checkpoints can be continued exactly; use "steps"{hint}'
        )
    for name, why in (
        ("save_only_model", "checkpoints without the optimiser's state cannot be continued"),
        ("sync_ref_model", "the moving reference model is not in a checkpoint"),
        ("ignore_data_skip", "prompts would come again that were trained on already"),
        ("load_best_model_at_end", "the phase's model is its last one"),
    ):
        if getattr(args, name):
            raise ConfigError(f"{name}: {why}; leave it out{hint}")
    inside = [step for step in saved_steps(args, prompts)[:-1] if not _generates_next(args, step, prompts)]
    if inside:
        every = _updates_per_generation(args)
        raise ConfigError(
            f"a checkpoint at step {inside[0]} would lie between two generations, so that training could not go on from it "
            f"exactly: make save_steps ({args.save_steps:g}) a multiple of {every} (steps_per_generation "
            f"{args.steps_per_generation} x num_iterations {args.num_iterations} / gradient_accumulation_steps "
            f"{args.gradient_accumulation_steps}){hint}"
        )
    unlogged = [step for step in saved_steps(args, prompts)[:-1] if not _logged(args, step, prompts)]
    if unlogged:
        raise ConfigError(
            f"a checkpoint at step {unlogged[0]} would lie between two logs, so that metrics after it could not be averaged "
            f"over all their steps: make save_steps ({args.save_steps:g}) a multiple of logging_steps "
            f"({args.logging_steps:g}){hint}"
        )


def resume_notes(args: GRPOConfig) -> list[str]:
    """What a user should know about resuming with these options although it is no error."""
    if str(getattr(args.save_strategy, "value", args.save_strategy)) == "no":
        return []
    reasons = {
        "vLLM's sampling is not in a checkpoint": args.use_vllm,
        "batches of continuous batching depend on time": args.use_transformers_continuous_batching,
        "kernels of a GPU round differently from time to time without full_determinism": (
            args.device.type == "cuda" and not args.full_determinism
        ),
    }
    ending = "a phase that is interrupted goes on, but not bit for bit as it would have"
    return [f"{reason}: {ending}" for reason, holds in reasons.items() if holds]


def check_same_architecture(folder: Path, model: str, *, what: str) -> None:
    """Nothing, if the two models have the same shape.

    Args:
        folder: what training would go on from.
        model: the model that the options name: a folder or a hub name.
        what: what messages call the folder.

    Raises:
        ModelLoadError: they differ; the message says in what.
    """
    from transformers import AutoConfig

    try:
        before = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        wanted = AutoConfig.from_pretrained(model).to_dict()
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{what} cannot be compared with {model}: {' '.join(str(error).split())}") from None
    differing = [
        f"{key} {before[key]} instead of {wanted[key]}"
        for key in SHAPE
        if key in before and key in wanted and before[key] != wanted[key]
    ]
    if differing:
        raise ModelLoadError(
            f"{what} ({folder}) has another architecture than {model}: {', '.join(differing)}; remove it, or name its model"
        )


def _micro_steps_per_epoch(args: GRPOConfig, prompts: int) -> int:
    assert args.generation_batch_size is not None
    assert args.steps_per_generation is not None
    assert args.num_generations is not None
    batches = prompts // (args.generation_batch_size // args.num_generations)
    return batches * args.num_iterations * args.steps_per_generation


def _updates_per_generation(args: GRPOConfig) -> int:
    assert args.steps_per_generation is not None
    micro = args.steps_per_generation * args.num_iterations
    return math.lcm(micro, args.gradient_accumulation_steps) // args.gradient_accumulation_steps


def _generates_next(args: GRPOConfig, step: int, prompts: int) -> bool:
    assert args.steps_per_generation is not None
    into_epoch = step % updates_per_epoch(args, prompts)
    return into_epoch * args.gradient_accumulation_steps % (args.steps_per_generation * args.num_iterations) == 0


def _logged(args: GRPOConfig, step: int, prompts: int) -> bool:
    strategy = str(getattr(args.logging_strategy, "value", args.logging_strategy))
    if strategy == "no":
        return True
    if strategy == "epoch":
        return step % updates_per_epoch(args, prompts) == 0
    return step % _steps(args.logging_steps, total_updates(args, prompts)) == 0


def _steps(value: float, total: int) -> int:
    """A number of steps that may be given as a share of all."""
    return max(1, math.ceil(value * total)) if value < 1 else int(value)
