"""The examples' options, through the parsers that read them in earnest."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from openrlhf_dynamicrubric.phases import KINDS, plan
from openrlhf_dynamicrubric.run_config import load_run_config

EXAMPLES = Path(__file__).parents[1] / "examples"
RUNS = ["cpu.yaml", "trl_coevolve.yaml"]


@pytest.mark.parametrize("name", RUNS)
def test_runs_are_read_by_the_parsers_of_all_three_phases(name: str, tmp_path: Path) -> None:
    from openrlhf_dynamicrubric.trl.arguments import GeneratorArguments, PolicyArguments, SampleArguments, parse, parse_training
    from openrlhf_dynamicrubric.trl.checks import check_generator_args
    from openrlhf_dynamicrubric.trl.resume import check_exact_resume

    config = load_run_config(EXAMPLES / name, [f"output_dir={tmp_path}"])
    phases = plan(config)
    assert [phase.kind for phase in phases] == [*KINDS] * config.rounds
    for phase in phases[:3]:
        phase.write_options()
    sample, generator, policy = (["--config", str(phase.folder / "phase.yaml")] for phase in phases[:3])
    [sampling] = parse(sample, SampleArguments)
    assert (sampling.num_responses, sampling.chat_prompts) == (config.sample.num_responses, True)
    # On a machine without a GPU the parser itself refuses bf16 unless it is to use the CPU.
    trained = [
        parse_training([*generator, "--use_cpu", "true"], GeneratorArguments),
        parse_training([*policy, "--use_cpu", "true"], PolicyArguments),
    ]
    check_generator_args(trained[0].trainer, trained[0].judges)
    for arguments, block in zip(trained, (config.generator, config.policy), strict=True):
        check_exact_resume(arguments.trainer, 24_000)
        assert arguments.trainer.learning_rate == float(block["learning_rate"])
        assert arguments.trainer.num_generations == block["num_generations"]
        assert arguments.judges.max_items == config.judge.max_items


def test_the_papers_numbers_stand_in_the_example_that_claims_them() -> None:
    config = load_run_config(EXAMPLES / "trl_coevolve.yaml")
    assert set(vars(config.models).values()) == {"Qwen/Qwen3-8B"}
    assert (config.sample.num_responses, config.sample.max_new_tokens, config.judge.rubric_max_tokens) == (8, 8192, 8192)
    for block, rate in ((config.generator, 5e-6), (config.policy, 1e-6)):
        assert float(block["learning_rate"]) == rate
        assert (block["beta"], block["num_generations"], block["max_completion_length"]) == (0.01, 8, 8192)
        assert block["per_device_train_batch_size"] * block["gradient_accumulation_steps"] * 8 == 256


def test_the_launch_of_the_8_gpu_example_is_what_accelerate_reads() -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_run_config(EXAMPLES / "trl_coevolve.yaml")
    assert config.launch.policy == config.launch.generator == (
        "accelerate", "launch", "--config_file", "examples/zero3.yaml", "-m",
    )  # fmt: skip
    read = load_config_from_file(str(EXAMPLES / "zero3.yaml"))
    assert read.num_processes == 8
    assert read.deepspeed_config["zero_stage"] == 3
    assert read.deepspeed_config["zero3_save_16bit_model"] is True


def test_every_line_of_options_says_what_it_is_or_stands_in_a_block_that_does() -> None:
    for line in (EXAMPLES / "cpu.yaml").read_text().splitlines():
        if ":" in line and not line.lstrip().startswith("#") and not line.startswith("  "):
            assert "#" in line or line.rstrip().endswith(":"), line


def test_scripts_are_shell() -> None:
    for script in EXAMPLES.glob("*.sh"):
        subprocess.run(["bash", "-n", script], check=True)


def test_yaml_files_are_yaml() -> None:
    for path in EXAMPLES.glob("*.yaml"):
        assert isinstance(yaml.safe_load(path.read_text()), dict)
