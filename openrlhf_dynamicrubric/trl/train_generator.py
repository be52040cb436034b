"""`dynamicrubric train-generator`: trains the rubric generator on response sets with ranked anchors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openrlhf_dynamicrubric.anchors import read_response_sets
from openrlhf_dynamicrubric.errors import ConfigError
from openrlhf_dynamicrubric.phases import TRAIN_GENERATOR
from openrlhf_dynamicrubric.trl.arguments import GeneratorArguments, TrainingArguments, parse_training
from openrlhf_dynamicrubric.trl.training import run_phase


def main(argv: Sequence[str]) -> int:
    """Trains G_{t-1} to G_t; see `GeneratorArguments` for what it takes besides GRPOConfig and ModelConfig.

    Can be launched by hand under accelerate or torchrun: `torchrun -m openrlhf_dynamicrubric train-generator --config x.yaml`.

    Returns:
        The exit code 0.

    Raises:
        DynamicRubricError: what is wrong, in one sentence.
    """
    arguments = parse_training(argv, GeneratorArguments, prog=f"dynamicrubric {TRAIN_GENERATOR}", description=__doc__)
    if not arguments.own.response_sets:
        raise ConfigError("response_sets is missing: name the file that `sample` wrote")
    if arguments.own.check:
        from openrlhf_dynamicrubric.trl.check import check_generator, say

        return say(check_generator(arguments, Path(arguments.own.response_sets)))
    run_phase(TRAIN_GENERATOR, argv, arguments, lambda model, callbacks: _trainer(arguments, model, callbacks))
    return 0


def _trainer(arguments: TrainingArguments, model: str, callbacks: list[Any]) -> Any:
    from openrlhf_dynamicrubric.trl.generator_trainer import RubricGeneratorTrainer
    from openrlhf_dynamicrubric.trl.resume import ContinuedEpochs, check_exact_resume

    class Trainer(ContinuedEpochs, RubricGeneratorTrainer):
        """The generator's trainer, whose order of prompts survives a resume."""

    own = arguments.own
    sets = read_response_sets(own.response_sets, minimum_anchors=2)
    check_exact_resume(arguments.trainer, len(sets))
    return Trainer(
        model,
        args=arguments.trainer,
        train_dataset=sets,
        config=arguments.judges,
        anchor_weight=own.anchor_weight,
        use_discriminability=own.use_discriminability,
        std_floor=own.std_floor,
        records=arguments.folder / "records",
        callbacks=callbacks,
    )
