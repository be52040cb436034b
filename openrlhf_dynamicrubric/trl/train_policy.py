"""`dynamicrubric train-policy`: TRL's GRPOTrainer with DynamicRubric as its reward, the generator frozen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openrlhf_dynamicrubric.anchors import read_prompts
from openrlhf_dynamicrubric.phases import TRAIN_POLICY
from openrlhf_dynamicrubric.trl.arguments import PolicyArguments, TrainingArguments, parse_training
from openrlhf_dynamicrubric.trl.training import policy_rows, run_phase


def main(argv: Sequence[str]) -> int:
    """Trains P_{t-1} to P_t; see `PolicyArguments` for what it takes besides GRPOConfig and ModelConfig.

    Can be launched by hand under accelerate or torchrun: `torchrun -m openrlhf_dynamicrubric train-policy --config x.yaml`.

    Returns:
        The exit code 0.

    Raises:
        DynamicRubricError: what is wrong, in one sentence.
    """
    arguments = parse_training(argv, PolicyArguments, prog=f"dynamicrubric {TRAIN_POLICY}", description=__doc__)
    if arguments.own.check:
        from openrlhf_dynamicrubric.trl.check import check_policy, say

        return say(check_policy(arguments))
    run_phase(TRAIN_POLICY, argv, arguments, lambda model, callbacks: _trainer(arguments, model, callbacks))
    return 0


def _trainer(arguments: TrainingArguments, model: str, callbacks: list[Any]) -> Any:
    from datasets import Dataset
    from trl.trainer.grpo_trainer import GRPOTrainer

    from openrlhf_dynamicrubric.trl.checks import check_enough_prompts
    from openrlhf_dynamicrubric.trl.resume import ContinuedEpochs, check_exact_resume
    from openrlhf_dynamicrubric.trl.reward import DynamicRubricReward

    class Trainer(ContinuedEpochs, GRPOTrainer):
        """The stock trainer, whose order of prompts survives a resume."""

    own = arguments.own
    rows = policy_rows(read_prompts(own.prompts, limit=own.max_prompts), chat=own.chat_prompts)
    check_enough_prompts(len(rows), arguments.trainer)
    check_exact_resume(arguments.trainer, len(rows))
    return Trainer(
        model=model,
        reward_funcs=DynamicRubricReward(config=arguments.judges, records=arguments.folder / "records"),
        args=arguments.trainer,
        train_dataset=Dataset.from_list(rows),
        callbacks=callbacks,
    )
