"""What would make a trainer stop late, or train nothing, found before it starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from openrlhf_dynamicrubric.anchors import check_prompt, check_texts
from openrlhf_dynamicrubric.errors import ConfigError, DataError, shown
from openrlhf_dynamicrubric.evaluator import EvaluatorConfig
from openrlhf_dynamicrubric.types import ResponseSet

if TYPE_CHECKING:
    from trl.trainer.grpo_config import GRPOConfig

COLUMNS = ("prompt", "responses", "anchors")


def check_enough_prompts(dataset_length: int, args: GRPOConfig) -> None:
    """Nothing, if the dataset fills at least one generation batch; TRL would train no step and say nothing.

    Args:
        dataset_length: prompts in the training dataset.
        args: the trainer's options.

    Raises:
        DataError: it does not; the message gives the numbers and what to change.
    """
    batch, group = args.generation_batch_size or 0, args.num_generations or 1
    needed = batch // group
    if dataset_length < needed:
        raise DataError(
            f"the training dataset has {dataset_length} prompts, and one generation batch takes {needed} "
            f"(generation_batch_size {batch} / num_generations {group}), so that not one step would be trained; "
            f"add prompts, or lower per_device_train_batch_size ({args.per_device_train_batch_size}) or "
            f"steps_per_generation ({args.steps_per_generation}; by default gradient_accumulation_steps)"
        )


def check_generator_args(args: GRPOConfig, config: EvaluatorConfig) -> None:
    """Options of the trainer that the generator's objective needs, set where TRL's default stands, checked elsewhere.

    Args:
        args: the trainer's options; `scale_rewards` is set to "none".
        config: evaluator options.

    Raises:
        ConfigError: an option that cannot be reconciled.
    """
    # The rewards are standardised already; "group" is TRL's default, so that it cannot be told from no choice at all.
    if args.scale_rewards == "group":
        args.scale_rewards = "none"
    if args.scale_rewards != "none":
        raise ConfigError(
            f"scale_rewards is {args.scale_rewards!r}, but the generator's rewards are standardised in their group before they "
            'are summed, and scaling the sum again would change the objective; leave it out, or set "none"'
        )
    if args.multi_objective_aggregation != "sum_then_normalize":
        raise ConfigError(
            f"multi_objective_aggregation is {args.multi_objective_aggregation!r}, which standardises the sum again over the "
            "whole batch; leave it out: each objective is standardised in its group before the sum"
        )
    if args.reward_weights is not None:
        raise ConfigError("reward_weights is not used here; the weight of anchor ranking is anchor_weight")
    if args.remove_unused_columns:
        raise ConfigError("remove_unused_columns would take away what tells a row's response set; leave it out")
    if args.use_transformers_continuous_batching:
        if config.constrained_rubrics:
            raise ConfigError(
                "constrained_rubrics does not work with use_transformers_continuous_batching; turn one of the two off"
            )
        check_one_group_size(args)
    if config.constrained_rubrics and args.use_vllm and args.vllm_importance_sampling_correction:
        raise ConfigError(
            "under constrained_rubrics vllm_importance_sampling_correction would weigh a rubric by how likely the model is to "
            "keep to the schema unaided, which can be next to nothing; set vllm_importance_sampling_correction to false"
        )


def check_one_group_size(args: GRPOConfig) -> None:
    """Nothing, if training and evaluation have the same group size, or the trainer's mode tells which one holds.

    After continuous batching the model is in training mode, also where it has sampled for an evaluation.

    Args:
        args: the trainer's options.

    Raises:
        ConfigError: they differ, and the mode cannot be told.
    """
    train, evaluation = args.num_generations, args.num_generations_eval or args.num_generations
    if args.use_transformers_continuous_batching and train != evaluation:
        raise ConfigError(
            f"use_transformers_continuous_batching needs num_generations_eval ({evaluation}) to equal num_generations ({train})"
        )


def read_response_rows(rows: Iterable[Any], name: str) -> list[ResponseSet]:
    """The rows of a dataset as response sets with anchors.

    Args:
        rows: response sets, or objects with `prompt`, `responses` (2 or more texts), `anchors` (2 or more, best first) and,
            if wanted, `id`.
        name: what an error message calls the dataset.

    Returns:
        One a row, with the row's number as `id` where it has none.

    Raises:
        DataError: a row is not of this form; the message says which and why.
    """
    sets = [_response_set(row, number, f"{name}, row {number}") for number, row in enumerate(rows)]
    if not sets:
        raise DataError(f"{name} has no rows")
    return sets


def _response_set(row: Any, number: int, where: str) -> ResponseSet:
    if isinstance(row, ResponseSet):
        row = {"prompt": row.prompt, "responses": list(row.responses), "anchors": list(row.anchors), "id": row.id or None}
    if not isinstance(row, Mapping):
        raise DataError(f"{where} must be an object with {', '.join(COLUMNS)}, got {shown(row)}")
    missing = [column for column in COLUMNS if row.get(column) is None]
    if missing:
        raise DataError(f"{where} has no {missing[0]}; a row needs {', '.join(COLUMNS)}, and may have an id")
    check_prompt(row["prompt"], where)
    for column in ("responses", "anchors"):
        check_texts(row[column], column, where, minimum=2)
    row_id = row.get("id")
    name = str(number if row_id is None else row_id)
    return ResponseSet(row["prompt"], tuple(row["responses"]), tuple(row["anchors"]), name)
