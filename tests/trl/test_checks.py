import pytest

from openrlhf_dynamicrubric.errors import ConfigError, DataError
from openrlhf_dynamicrubric.evaluator import EvaluatorConfig
from openrlhf_dynamicrubric.trl.checks import (
    check_enough_prompts,
    check_generator_args,
    check_one_group_size,
    read_response_rows,
)
from openrlhf_dynamicrubric.types import ResponseSet
from tests.trl.support import grpo_args

ROW = {"prompt": "p", "responses": ["a", "b"], "anchors": ["c", "d"], "id": "x"}


def test_a_dataset_of_one_generation_batch_is_enough(tmp_path):
    args = grpo_args(tmp_path, per_device_train_batch_size=8, gradient_accumulation_steps=2, num_generations=4)
    check_enough_prompts(4, args)
    with pytest.raises(
        DataError,
        match=r"has 3 prompts, and one generation batch takes 4 \(generation_batch_size 16 / num_generations 4\).*"
        r"add prompts, or lower per_device_train_batch_size \(8\) or steps_per_generation \(2",
    ):
        check_enough_prompts(3, args)


def test_rewards_are_not_scaled_again(tmp_path):
    args = grpo_args(tmp_path)
    check_generator_args(args, EvaluatorConfig())
    assert args.scale_rewards == "none"
    check_generator_args(args, EvaluatorConfig())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale_rewards": "batch"}, "scale_rewards is 'batch'"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "multi_objective_aggregation is 'normalize_then_sum'"),
        ({"reward_weights": [1.0, 2.0]}, "the weight of anchor ranking is anchor_weight"),
        ({"use_transformers_continuous_batching": True}, "constrained_rubrics does not work with use_transformers"),
        ({"remove_unused_columns": True}, "remove_unused_columns would take away"),
        ({"use_vllm": True}, "set vllm_importance_sampling_correction to false"),
    ],
)
def test_options_that_would_change_the_objective_are_refused(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        check_generator_args(grpo_args(tmp_path, **options), EvaluatorConfig())


def test_unconstrained_rubrics_may_be_batched_continuously(tmp_path):
    free = EvaluatorConfig(constrained_rubrics=False)
    check_generator_args(grpo_args(tmp_path, use_transformers_continuous_batching=True), free)
    check_generator_args(grpo_args(tmp_path, use_vllm=True), free)
    args = grpo_args(tmp_path, use_transformers_continuous_batching=True, num_generations_eval=2)
    with pytest.raises(ConfigError, match=r"num_generations_eval \(2\) to equal num_generations \(4\)"):
        check_generator_args(args, free)


def test_vllm_may_be_constrained_without_its_correction(tmp_path):
    check_generator_args(grpo_args(tmp_path, use_vllm=True, vllm_importance_sampling_correction=False), EvaluatorConfig())


def test_the_mode_tells_the_group_size_where_it_is_kept(tmp_path):
    check_one_group_size(grpo_args(tmp_path, num_generations_eval=2))
    check_one_group_size(grpo_args(tmp_path, use_transformers_continuous_batching=True))


def test_rows_become_response_sets():
    given = ResponseSet("q", ("a", "b"), ("c", "d"), "y")
    rows = [ROW, {**ROW, "id": None, "more": 1}, given, {**ROW, "id": 7}]
    assert read_response_rows(rows, "it") == [
        ResponseSet("p", ("a", "b"), ("c", "d"), "x"),
        ResponseSet("p", ("a", "b"), ("c", "d"), "1"),
        given,
        ResponseSet("p", ("a", "b"), ("c", "d"), "7"),
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "p", "responses": ["a", "b"]}, "it, row 1 has no anchors; a row needs prompt, responses, anchors"),
        ({**ROW, "prompt": " "}, "it, row 1: prompt must be text"),
        ({**ROW, "responses": ["a"]}, "it, row 1: responses must be a list of at least 2 texts, got 1"),
        ({**ROW, "anchors": ["a"]}, "it, row 1: anchors must be a list of at least 2 texts, got 1"),
        ({**ROW, "anchors": ["a", 3]}, r"it, row 1: anchors\[1\] must be text, got 3"),
        (ResponseSet("q", ("a", "b")), "it, row 1: anchors must be a list of at least 2 texts, got 0"),
        ("prompt", "it, row 1 must be an object with prompt, responses, anchors, got 'prompt'"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(row, message):
    with pytest.raises(DataError, match=message):
        read_response_rows([ROW, row], "it")


def test_a_dataset_without_rows_is_refused():
    with pytest.raises(DataError, match="it has no rows"):
        read_response_rows([], "it")
