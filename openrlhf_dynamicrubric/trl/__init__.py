"""DynamicRubric in TRL: a reward function for GRPOTrainer, and the trainer of the rubric generator.

`dynamicrubric` is an instance of the reward configured by environment variables, for `trl grpo --config` with
`reward_funcs: [openrlhf_dynamicrubric.trl.dynamicrubric]`. Nothing is loaded before it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openrlhf_dynamicrubric.trl.generator_trainer import RubricGeneratorTrainer
    from openrlhf_dynamicrubric.trl.reward import DynamicRubricReward

    dynamicrubric: DynamicRubricReward

__all__ = ["DynamicRubricReward", "RubricGeneratorTrainer", "dynamicrubric"]


def __getattr__(name: str) -> Any:
    if name == "DynamicRubricReward":
        from openrlhf_dynamicrubric.trl.reward import DynamicRubricReward

        return DynamicRubricReward
    if name == "RubricGeneratorTrainer":
        from openrlhf_dynamicrubric.trl.generator_trainer import RubricGeneratorTrainer

        return RubricGeneratorTrainer
    if name == "dynamicrubric":
        import os

        from openrlhf_dynamicrubric.trl.environment import reward_from

        globals()[name] = reward = reward_from(os.environ)
        return reward
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
