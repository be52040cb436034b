"""What this package relies on in TRL and transformers beyond their documentation. A failure here names the range to look at."""

import inspect

import pytest
import torch
from datasets import Dataset
from transformers.integrations import deepspeed
from trl.generation.vllm_client import VLLMClient
from trl.generation.vllm_generation import VLLMGeneration
from trl.trainer import grpo_trainer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_config import RLOOConfig
from trl.trainer.rloo_trainer import RLOOTrainer
from trl.trainer.utils import RepeatSampler, get_callable_name, is_async_callable

from openrlhf_dynamicrubric.trl import DynamicRubricReward, RubricGeneratorTrainer
from openrlhf_dynamicrubric.trl.contract import RANGE
from tests.trl.support import coin_model, grpo_args

WHERE = f"made for {RANGE}: look at what changed there, then at openrlhf_dynamicrubric/trl"


def parameters(function):
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        ("_calculate_rewards", ["self", "inputs", "prompts", "completions", "completion_ids_list"]),
        (
            "_generate_single_turn",
            ["self", "prompt_ids", "images", "multimodal_fields", "num_generations", "has_tool_images"],
        ),
        ("_tokenize_prompts", ["self", "prompts"]),
        ("_log_metric", ["self", "name", "value"]),
        ("_log_completion_extra", ["self", "column", "values"]),
    ],
)
def test_methods_that_are_overridden_or_called(method, wanted):
    assert parameters(getattr(GRPOTrainer, method)) == wanted, f"GRPOTrainer.{method}: {WHERE}"


def test_overridden_methods_are_the_ones_that_trl_calls():
    body = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    assert "self._calculate_rewards(inputs, prompts, completions, completion_ids_list)" in body, WHERE
    body = inspect.getsource(GRPOTrainer._generate)
    assert "self._generate_single_turn(" in body, WHERE
    assert "self._tokenize_prompts(prompts)" in body, WHERE


def test_overrides_are_the_documented_three():
    ours = {name for name, value in vars(RubricGeneratorTrainer).items() if inspect.isfunction(value)}
    assert {name for name in ours if hasattr(GRPOTrainer, name)} == {
        "__init__",
        "_calculate_rewards",
        "_generate_single_turn",
        "_tokenize_prompts",
    }


def test_advantages_are_the_sum_of_the_columns_without_scaling():
    body = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    assert 'if self.scale_rewards != "none":\n                advantages = advantages / (std_rewards + 1e-4)' in body, WHERE
    assert "advantages = torch.nan_to_num(advantages, nan=0.0)" in body, WHERE


def test_defaults_that_are_told_apart_from_a_choice(tmp_path):
    args = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    found = (args.scale_rewards, args.multi_objective_aggregation, args.reward_weights, args.generation_kwargs)
    assert found == ("group", "sum_then_normalize", None, None), WHERE


def test_what_a_reward_function_is_given(tiny, tmp_path):
    calls = []

    def spy(prompts, completions, **kwargs):
        calls.append(kwargs)
        return [0.0] * len(prompts)

    trainer = GRPOTrainer(
        str(tiny),
        reward_funcs=spy,
        args=grpo_args(tmp_path, num_generations_eval=2),
        train_dataset=Dataset.from_list([{"prompt": "p", "id": "x"}]),
    )
    trainer.train()
    [kwargs] = calls
    assert set(kwargs) >= {"completion_ids", "id", "trainer_state", "log_extra", "log_metric"}, WHERE
    assert kwargs["log_metric"].__self__ is trainer, WHERE
    assert (trainer.num_generations, trainer.num_generations_eval) == (4, 2), WHERE
    assert kwargs["trainer_state"].global_step == 1, WHERE  # the state is shared; at the call it was 0


def test_attributes_of_the_trainer(tiny, tmp_path):
    trainer = GRPOTrainer(
        str(tiny), reward_funcs=len, args=grpo_args(tmp_path), train_dataset=Dataset.from_list([{"prompt": "p"}])
    )
    tokenizer = trainer.processing_class
    assert trainer._tokenizer is tokenizer, WHERE
    assert trainer.eos_token_ids == [tokenizer.eos_token_id], WHERE
    assert trainer.max_completion_length == 12, WHERE
    assert trainer.model_wrapped is not None, WHERE


def test_the_model_that_samples_is_the_unwrapped_one(tiny, tmp_path):
    trainer = GRPOTrainer(
        str(tiny), reward_funcs=len, args=grpo_args(tmp_path), train_dataset=Dataset.from_list([{"prompt": "p"}])
    )
    with grpo_trainer.unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model:
        assert model is trainer.accelerator.unwrap_model(trainer.model_wrapped), WHERE


def test_rloo_tells_a_reward_its_group_size_too(tiny, tmp_path):
    judge = coin_model()
    trainer = RLOOTrainer(
        str(tiny),
        reward_funcs=DynamicRubricReward(judge, judge),
        args=RLOOConfig(
            str(tmp_path),
            use_cpu=True,
            bf16=False,
            max_steps=1,
            num_generations=2,
            per_device_train_batch_size=4,
            max_completion_length=8,
            report_to=[],
            save_strategy="no",
        ),
        train_dataset=Dataset.from_list([{"prompt": "p"}] * 2),
    )
    trainer.train()
    assert len(judge.written) == 2, WHERE  # the batch alone would look like one group of 4


def test_the_reward_is_seen_as_a_plain_function():
    reward = DynamicRubricReward(coin_model(), coin_model())
    assert get_callable_name(reward) == "dynamicrubric", WHERE
    assert not is_async_callable(reward), WHERE


def test_a_small_dataset_trains_nothing_and_trl_does_not_say_so():
    """Why check_enough_prompts exists: should TRL raise by itself one day, it can go."""
    assert len(RepeatSampler([0, 1, 2], mini_repeat_count=4, batch_size=4)) == 0, WHERE


def test_the_schema_reaches_vllm_in_both_modes():
    colocate = inspect.getsource(VLLMGeneration.generate)
    assert 'isinstance(structured_outputs_kwargs := generation_kwargs.get("structured_outputs"), dict)' in colocate, WHERE
    assert "StructuredOutputsParams(**structured_outputs_kwargs)" in colocate, WHERE
    assert '"generation_kwargs": self.generation_kwargs' in colocate, WHERE
    assert "sampling_params.update(generation_kwargs or {})" in inspect.getsource(VLLMClient.generate), WHERE


def test_the_place_where_transformers_keeps_deepspeeds_configuration(monkeypatch: pytest.MonkeyPatch):
    class Zero3:
        def is_zero3(self):
            return True

    config = Zero3()
    monkeypatch.setattr(deepspeed, "_hf_deepspeed_config_weak_ref", lambda: config)
    assert deepspeed.is_deepspeed_zero3_enabled(), WHERE


def test_grad_mode_belongs_to_a_thread():
    """Why judging enters no_grad on the thread that it runs on."""
    import threading

    modes = []
    with torch.no_grad():
        thread = threading.Thread(target=lambda: modes.append(torch.is_grad_enabled()))
        thread.start()
        thread.join()
    assert modes == [True]
