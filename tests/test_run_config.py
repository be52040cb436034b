from __future__ import annotations

import ast
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from openrlhf_dynamicrubric import run_config as module
from openrlhf_dynamicrubric.errors import ConfigError
from openrlhf_dynamicrubric.evaluator import EvaluatorConfig
from openrlhf_dynamicrubric.run_config import (
    LaunchConfig,
    ModelsConfig,
    RunConfig,
    SampleConfig,
    changed_keys,
    config_values,
    load_run_config,
    run_config,
)

CLASSES = (RunConfig, ModelsConfig, SampleConfig, LaunchConfig)


def build(**values: Any) -> RunConfig:
    return run_config({"output_dir": "run", **values})


def test_defaults_are_the_papers_where_it_has_any() -> None:
    config = build()
    assert (config.sample.num_responses, config.sample_from, config.generator_rounds) == (8, "current", None)
    assert config.models == ModelsConfig("embedded", "embedded", "embedded")
    assert config.judge == EvaluatorConfig()


def test_values_survive_the_way_to_disk_and_back() -> None:
    config = build(
        rounds=3,
        launch={"policy": ["torchrun", "--nproc_per_node", 8, "-m"]},
        judge={"max_items": 4},
        generator={"learning_rate": "1e-5", "env": {"A": "b"}},
        max_anchor_prompts=12,
    )
    assert config.launch.policy == ("torchrun", "--nproc_per_node", "8", "-m")
    assert run_config(json.loads(json.dumps(config_values(config)))) == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"round": 3}, r"^unknown option round; did you mean rounds\?$"),
        ({"sample": {"num_respones": 3}}, r"^unknown option sample.num_respones; did you mean num_responses\?$"),
        ({"models": {"critic": "x"}}, r"^unknown option models.critic; known are generator, policy, verifier$"),
        ({"rounds": "three"}, r"^rounds must be a whole number, got 'three'$"),
        ({"rounds": True}, r"^rounds must be a whole number, got True$"),
        ({"rounds": None}, r"^rounds must be a whole number, got None$"),
        ({"rounds": 0}, r"^rounds must be at least 1, got 0$"),
        ({"seed": -1}, r"^seed must be at least 0, got -1$"),
        ({"chat_prompts": "yes"}, r"^chat_prompts must be true or false, got 'yes'$"),
        ({"anchors": 3}, r"^anchors must be text, got 3$"),
        ({"max_policy_prompts": 0}, r"^max_policy_prompts must be at least 1, got 0$"),
        ({"max_anchor_prompts": 1.5}, r"^max_anchor_prompts must be a whole number, got 1.5$"),
        ({"generator_rounds": -1}, r"^generator_rounds must be at least 0, got -1$"),
        ({"sample_from": "first"}, r"^sample_from must be one of current, initial, got 'first'$"),
        ({"sample": {"num_responses": 1}}, r"^sample.num_responses must be at least 2, got 1$"),
        ({"sample": {"temperature": "hot"}}, r"^sample.temperature must be a number, got 'hot'$"),
        ({"sample": {"top_p": 0}}, r"^sample.top_p must lie in \(0, 1\], got 0.0$"),
        ({"sample": {"top_p": float("nan")}}, r"^sample.top_p must lie in"),
        ({"sample": [1]}, r"^sample must be a block of options, got \[1\]$"),
        ({"generator": [1]}, r"^generator must be a block of options, got \[1\]$"),
        ({"policy": {"seed": 3}}, r"^policy.seed is set by the run; take it out of the block `policy`$"),
        ({"policy": {"prompts": "x"}}, r"^policy.prompts is set by the run"),
        ({"generator": {"output_dir": "x"}}, r"^generator.output_dir is set by the run"),
        ({"generator": {"max_items": 3}}, r"^generator.max_items is an option of the judges; write it as judge.max_items$"),
        ({"judge": {"verifier": "x"}}, r"^judge.verifier belongs under models: write models.verifier$"),
        ({"judge": {"max_item": 3}}, r"^unknown option judge.max_item; did you mean max_items\?$"),
        ({"judge": {"verdict_threshold": 2.0}}, r"^judge.verdict_threshold cannot be 2.0"),
        ({"launch": {"policy": "torchrun -m"}}, r"^launch.policy must be a list of words, got 'torchrun -m'$"),
        ({"output_dir": ""}, r"^output_dir is missing: name the folder of the run$"),
    ],
)
def test_what_cannot_be_is_said_with_its_key_and_value(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(**values)


def test_a_number_that_yaml_reads_as_text_is_a_number_and_an_empty_block_is_none(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("output_dir: run\nsample: {temperature: 1e-1}\ngenerator:\n# nothing here\njudge:\n")
    config = load_run_config(path, ["sample.num_responses=4", "policy.learning_rate=1e-5", "rounds=3"])
    assert config.sample == SampleConfig(num_responses=4, temperature=0.1)
    assert (config.generator, config.policy, config.rounds) == ({}, {"learning_rate": "1e-5"}, 3)


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        (None, [], r"missing.yaml cannot be read: No such file"),
        ("a: [", [], r"run.yaml is not YAML: while parsing"),
        ("- a", [], r"run.yaml must hold keys and values, got list"),
        ("a: \xff", [], r"run.yaml is not YAML"),
        ("output_dir: x", ["rounds"], r"--set takes key=value or block.key=value, got 'rounds'"),
        ("output_dir: x", ["rounds.a=1"], None),
        ("output_dir: x", ["output_dir.a=1"], r"--set output_dir.a=1: output_dir is not a block of options"),
        ("output_dir: x", ["rounds=["], r"--set rounds=\[: not YAML"),
    ],
)
def test_files_and_overrides_that_cannot_be_read(
    tmp_path: Path, text: str | None, overrides: list[str], message: str | None
) -> None:
    path = tmp_path / ("missing.yaml" if text is None else "run.yaml")
    if text is not None:
        path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=message):
        load_run_config(path, overrides)


def test_changed_keys_go_into_blocks_and_name_what_is_missing() -> None:
    old = {"rounds": 2, "policy": {"beta": 0.1}, "gone": 1}
    new = {"rounds": 2, "policy": {"beta": 0.2, "top_p": 0.9}}
    assert list(changed_keys(old, new)) == [("policy.beta", 0.1, 0.2), ("policy.top_p", None, 0.9), ("gone", 1, None)]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_option_is_documented_and_read_somewhere(kind: type) -> None:
    package = Path(module.__file__).parent
    read = set()
    for path in package.rglob("*.py"):
        tree = ast.parse(path.read_text())
        read |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        if "asdict(config.sample)" in path.read_text():
            read |= {option.name for option in dataclasses.fields(SampleConfig)}
    read |= {"anchors", "prompts"}  # by name, in coevolution.py
    for option in dataclasses.fields(kind):
        assert option.metadata.get("help"), option.name
        assert option.name in read, option.name


@pytest.mark.parametrize("name", ["hub_token", "push_to_hub_token", "api_key", "wandb_password"])
def test_secrets_are_not_taken_from_the_file(name: str) -> None:
    with pytest.raises(ConfigError, match=f"policy.{name} would be written into the run's files; .*environment variable"):
        run_config({"output_dir": "x", "policy": {name: "hf_123"}})
