import sys
from dataclasses import fields

import pytest

import openrlhf_dynamicrubric.trl as package
from openrlhf_dynamicrubric.errors import ConfigError
from openrlhf_dynamicrubric.evaluator import EvaluatorConfig
from openrlhf_dynamicrubric.llm import embedded
from openrlhf_dynamicrubric.trl.environment import reward_from, reward_options
from openrlhf_dynamicrubric.trl.reward import DynamicRubricReward


def test_every_option_has_a_variable_of_its_type():
    defaults = {option.name: option.default for option in fields(EvaluatorConfig)}
    environment = {f"DYNAMICRUBRIC_{name.upper()}": str(value) for name, value in defaults.items()}
    options = reward_options(environment)
    assert options == defaults
    assert {name: type(value) for name, value in options.items()} == {name: type(value) for name, value in defaults.items()}


def test_records_and_patience_are_options_and_the_cache_is_somebody_elses():
    environment = {
        "DYNAMICRUBRIC_RECORDS": "run/records",
        "DYNAMICRUBRIC_MAX_UNSCORABLE_STEPS": "0",
        "DYNAMICRUBRIC_CACHE": "/somewhere",
        "HOME": "/root",
    }
    assert reward_options(environment) == {"records": "run/records", "max_unscorable_steps": 0}


@pytest.mark.parametrize("text", ["true", "True", "1", "yes", " YES "])
def test_ways_to_say_true(text):
    assert reward_options({"DYNAMICRUBRIC_STRIP_REASONING": text}) == {"strip_reasoning": True}


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("MAX_ITEMS", "many", "a whole number"),
        ("MAX_ITEMS", "4.5", "a whole number"),
        ("RUBRIC_TEMPERATURE", "warm", "a number"),
        ("CONSTRAINED_RUBRICS", "perhaps", "true or false"),
        ("JUDGE_DTYPE", "float8", "one of auto, float32, bfloat16, float16"),
    ],
)
def test_a_value_of_another_type_is_refused_with_variable_and_value(name, value, wanted):
    with pytest.raises(ConfigError, match=f"DYNAMICRUBRIC_{name} must be {wanted}, got '{value}'"):
        reward_options({f"DYNAMICRUBRIC_{name}": value})


@pytest.mark.parametrize("variable", ["DYNAMICRUBRIC_MAX_ITEM", "DYNAMICRUBRIC_max_items"])
def test_an_unknown_variable_is_refused_with_near_names(variable):
    with pytest.raises(ConfigError, match=f"{variable} is no option; did you mean DYNAMICRUBRIC_MAX_ITEMS"):
        reward_options({variable: "4"})


def test_the_module_level_instance_is_made_on_first_use(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.delitem(vars(package), "dynamicrubric", raising=False)
    monkeypatch.setenv("DYNAMICRUBRIC_MAX_ITEMS", "3")
    monkeypatch.setenv("DYNAMICRUBRIC_GENERATOR", "some/writer")
    monkeypatch.setenv("DYNAMICRUBRIC_VERIFIER", "some/judge")
    monkeypatch.setenv("DYNAMICRUBRIC_RECORDS", str(tmp_path))
    reward = package.dynamicrubric
    assert isinstance(reward, DynamicRubricReward)
    assert (reward.config.max_items, reward.config.verifier) == (3, "some/judge")
    assert reward.records is not None
    assert reward.records.path == tmp_path / "groups.jsonl"
    assert package.dynamicrubric is reward
    monkeypatch.delitem(vars(package), "dynamicrubric")


def test_an_embedded_judge_is_unpacked_before_training(monkeypatch: pytest.MonkeyPatch):
    unpacked = []
    monkeypatch.setattr(embedded, "embedded_model", lambda: unpacked.append("now"))
    reward_from({"DYNAMICRUBRIC_GENERATOR": "some/writer"})
    assert unpacked == ["now"]


def test_a_wrong_environment_stops_the_import_of_the_instance(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(vars(package), "dynamicrubric", raising=False)
    monkeypatch.setenv("DYNAMICRUBRIC_MAX_ITEMS", "0")
    with pytest.raises(ConfigError, match="max_items cannot be 0"):
        package.dynamicrubric  # noqa: B018


def test_no_submodule_has_the_name_of_the_instance():
    assert "openrlhf_dynamicrubric.trl.dynamicrubric" not in sys.modules
    with pytest.raises(AttributeError, match="no attribute 'dynamicrubrics'"):
        package.dynamicrubrics  # noqa: B018
