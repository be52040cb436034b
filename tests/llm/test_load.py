"""Judges by name: once a process, and refused early."""

from __future__ import annotations

from pathlib import Path

import pytest

from openrlhf_dynamicrubric.errors import MissingDependencyError, ModelLoadError
from openrlhf_dynamicrubric.evaluator import EvaluatorConfig
from openrlhf_dynamicrubric.llm import checkpoint, embedded, load
from openrlhf_dynamicrubric.llm.load import load_evaluator, load_model
from openrlhf_dynamicrubric.llm.transformers_local import TransformersModel
from tests.tiny import build_tiny_model


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(load, "_loaded", {})
    return build_tiny_model(tmp_path / "model")


def test_one_instance_for_one_name_and_precision(folder: Path) -> None:
    model = load_model(str(folder))
    assert load_model(str(folder)) is model
    assert load_model(str(folder), dtype="bfloat16") is not model
    assert model.name == str(folder)


def test_the_smallest_budget_counts(folder: Path) -> None:
    model = load_model(str(folder), batch_tokens=4000)
    assert isinstance(model, TransformersModel)
    assert (model.batch_tokens, load_model(str(folder), batch_tokens=900).batch_tokens) == (4000, 900)  # type: ignore[attr-defined]
    load_model(str(folder), batch_tokens=5000)
    assert model.batch_tokens == 900


def test_a_model_that_failed_is_tried_again(folder: Path) -> None:
    config = (folder / "config.json").read_text()
    (folder / "config.json").unlink()
    with pytest.raises(ModelLoadError):
        load_model(str(folder))
    (folder / "config.json").write_text(config)
    assert load_model(str(folder))


def test_a_judge_needs_a_chat_template_and_a_sampler_does_not(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ModelLoadError, match="no chat template"):
        load_model(str(folder))
    assert load_model(str(folder), judge=False)
    with pytest.raises(ModelLoadError, match="no chat template"):
        load_model(str(folder))


def test_embedded_is_named_as_the_user_named_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "embedded_model", lambda: folder)
    assert load_model("embedded").name == "embedded"


def test_an_evaluator_as_configured(folder: Path, tmp_path: Path) -> None:
    other = build_tiny_model(tmp_path / "other", seed=1)
    config = EvaluatorConfig(generator=str(folder), verifier=str(other), judge_dtype="float32", judge_batch_tokens=777)
    evaluator = load_evaluator(config)
    assert evaluator.generator is not None
    assert evaluator.generator.model is load_model(str(folder), dtype="float32")
    assert evaluator.verifier.model is load_model(str(other), dtype="float32")
    assert evaluator.verifier.model.batch_tokens == 777  # type: ignore[attr-defined]
    assert load_evaluator(config, with_generator=False).generator is None


def test_generator_and_verifier_of_one_name_share_a_model(folder: Path) -> None:
    evaluator = load_evaluator(EvaluatorConfig(generator=str(folder), verifier=str(folder)))
    assert evaluator.generator is not None
    assert evaluator.generator.model is evaluator.verifier.model


def test_without_transformers_the_error_names_the_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match=r"transformers: pip install 'openrlhf_dynamicrubric\[trl\]'"):
        load_model(str(folder))
    with pytest.raises(MissingDependencyError):
        checkpoint.require_transformers()


def test_a_folder_that_was_written_anew_is_loaded_anew(folder: Path) -> None:
    before = load_model(str(folder))
    assert load_model(str(folder)) is before
    build_tiny_model(folder, seed=7)
    assert load_model(str(folder)) is not before
