"""A checkpoint is loaded whole, or one sentence says why not; the check without weights says the same."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.distributed import fsdp
from transformers.integrations import deepspeed

from openrlhf_dynamicrubric.errors import ModelLoadError
from openrlhf_dynamicrubric.llm.checkpoint import (
    check_checkpoint,
    load_causal_lm,
    load_tokenizer,
    process_device,
    quiet,
    without_sharded_loading,
)
from tests.tiny import build_tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return build_tiny_model(tmp_path / "model")


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})


def change_config(folder: Path, **entries: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def test_a_whole_checkpoint(folder: Path) -> None:
    check_checkpoint(folder)
    model = load_causal_lm(folder)
    assert not model.training
    assert model.dtype == torch.float32
    weights = load_file(folder / "model.safetensors")
    assert torch.equal(model.get_input_embeddings().weight, weights["model.embed_tokens.weight"])  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_precision(dtype: str, folder: Path) -> None:
    assert load_causal_lm(folder, dtype=dtype, device="cpu").dtype == getattr(torch, dtype)


def test_auto_takes_the_precision_of_the_checkpoint(folder: Path, tmp_path: Path) -> None:
    load_causal_lm(folder, dtype="bfloat16").save_pretrained(tmp_path / "half")
    assert load_causal_lm(tmp_path / "half").dtype == torch.bfloat16


NAME = "model.layers.1.mlp.up_proj.weight"


def without_some(weights: dict[str, torch.Tensor]) -> None:
    for name in [name for name in weights if ".layers.1." in name]:
        del weights[name]


def with_more(weights: dict[str, torch.Tensor]) -> None:
    weights["model.layers.7.strange.weight"] = torch.zeros(2)


def with_another_shape(weights: dict[str, torch.Tensor]) -> None:
    weights[NAME] = torch.zeros(3, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.pop(NAME), rf"1 weights are missing: {NAME}$"),
        (without_some, r"9 weights are missing: model\.layers\.1\.\S+, \S+, \S+, \.\.\.$"),
        (with_more, r"1 weights do not belong to this architecture: model\.layers\.7\.strange\.weight$"),
        (with_another_shape, rf"1 weights have another shape than config\.json says: {NAME}$"),
    ],
)
def test_weights_that_do_not_fit(change: Callable[[dict[str, torch.Tensor]], None], message: str, folder: Path) -> None:
    change_weights(folder, change)
    for load in (check_checkpoint, load_causal_lm):
        with pytest.raises(ModelLoadError, match=message):
            load(folder)


def test_a_config_of_another_size(folder: Path) -> None:
    change_config(folder, hidden_size=64)
    for load in (check_checkpoint, load_causal_lm):
        with pytest.raises(ModelLoadError, match="another shape"):
            load(folder)


def test_a_config_of_another_architecture(folder: Path, tmp_path: Path) -> None:
    other = build_tiny_model(tmp_path / "other", model_type="gpt_neox")
    (folder / "config.json").write_text((other / "config.json").read_text())
    for load in (check_checkpoint, load_causal_lm):
        with pytest.raises(ModelLoadError, match="weights are missing"):
            load(folder)


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": ')


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "is not a model: it has no config.json"),
        (break_config, "cannot be loaded as a causal language model"),
        (lambda folder: change_config(folder, model_type="no_such_architecture"), "no_such_architecture"),
        (lambda folder: change_config(folder, model_type="t5", architectures=["T5ForConditionalGeneration"]), "T5Config"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
        (cut_weights, "cannot be loaded as a causal language model"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "cannot be loaded as a causal language model"),
    ],
)
def test_damaged_folders(damage: Callable[[Path], object], message: str, folder: Path) -> None:
    damage(folder)
    for load in (check_checkpoint, load_causal_lm):
        with pytest.raises(ModelLoadError, match=message) as raised:
            load(folder)
        assert str(folder) in str(raised.value)
        assert "\n" not in str(raised.value)


def test_a_classifier_is_no_language_model(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    AutoModelForSequenceClassification.from_pretrained(folder).save_pretrained(tmp_path / "classifier")
    load_tokenizer(folder).save_pretrained(tmp_path / "classifier")
    for load in (check_checkpoint, load_causal_lm):
        with pytest.raises(ModelLoadError, match=r"do not belong to this architecture: score\.weight"):
            load(tmp_path / "classifier")


def test_an_adapter_without_its_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelLoadError, match="adapter without its model; merge"):
        check_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["/no/such/folder", "./no/such/folder", "no/such/folder", Path("no-such-folder")])
def test_no_folder(name: str | Path) -> None:
    for load in (check_checkpoint, load_causal_lm):
        with pytest.raises(ModelLoadError, match="there is no folder"):
            load(name)


def test_a_hub_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for load in (check_checkpoint, load_causal_lm):
        with pytest.raises(ModelLoadError, match="no-such-owner/no-such-model cannot be loaded"):
            load("no-such-owner/no-such-model")


def test_no_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ModelLoadError, match="has no tokenizer that can be read"):
        check_checkpoint(folder)
    load_causal_lm(folder)


def test_a_tokenizer_without_a_pad_token_takes_its_end_token(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    del settings["pad_token"]
    path.write_text(json.dumps(settings))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.pad_token == tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.padding_side == "left"
    del settings["eos_token"]
    path.write_text(json.dumps(settings))
    with pytest.raises(ModelLoadError, match="neither a pad token nor an end token"):
        load_tokenizer(folder)


def test_the_check_takes_no_memory_for_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from openrlhf_dynamicrubric.llm import checkpoint

    models = []
    original = checkpoint._load

    def load(*arguments: object, **options: object) -> object:
        models.append(original(*arguments, **options))  # type: ignore[arg-type]
        return models[-1]

    monkeypatch.setattr(checkpoint, "_load", load)
    check_checkpoint(folder)
    assert {weight.device.type for weight in models[0].parameters()} == {"meta"}


def test_loading_leaves_the_random_state_alone(folder: Path) -> None:
    before = torch.get_rng_state()
    load_causal_lm(folder)
    check_checkpoint(folder)
    assert torch.equal(torch.get_rng_state(), before)


def noise() -> tuple[int, bool]:
    from transformers.utils import logging as transformers_logging

    return transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()


def test_quiet_puts_everything_back() -> None:
    before = noise()
    with quiet():
        assert noise() == (logging.ERROR, False)
    with quiet(bars=True):
        assert noise() == (logging.ERROR, before[1])
    assert noise() == before


def test_quiet_puts_everything_back_after_an_error() -> None:
    before = noise()
    with pytest.raises(ZeroDivisionError), quiet():
        raise ZeroDivisionError
    assert noise() == before


class Zero3:
    def is_zero3(self):
        return True


@pytest.fixture
def sharding(monkeypatch: pytest.MonkeyPatch):
    """As transformers finds things in a trainer under ZeRO-3 and FSDP, here both at once: how many of the two are on."""
    config = Zero3()
    monkeypatch.setattr(deepspeed, "_hf_deepspeed_config_weak_ref", lambda: config)
    monkeypatch.setattr(fsdp, "_is_torch_distributed_initialized", lambda: True)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "true")
    return lambda: [deepspeed.is_deepspeed_zero3_enabled(), fsdp.is_fsdp_enabled()]


def test_models_are_loaded_whole_where_the_trainers_model_is_sharded(folder: Path, sharding, monkeypatch: pytest.MonkeyPatch):
    sharded = []
    plain = transformers.AutoModelForCausalLM.from_pretrained

    def from_pretrained(*args, **options):
        sharded.append(sharding())
        return plain(*args, **options)

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", from_pretrained)
    assert sum(weight.numel() for weight in load_causal_lm(folder).parameters()) == check_checkpoint(folder) > 0
    assert sharded == [[False, False]] * 2
    assert sharding() == [True, True]


def test_sharding_is_back_after_an_error(sharding):
    with pytest.raises(ZeroDivisionError), without_sharded_loading():
        1 // 0  # noqa: B018
    assert sharding() == [True, True]


def test_nothing_is_left_where_nothing_was(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("FSDP_CPU_RAM_EFFICIENT_LOADING", raising=False)
    with without_sharded_loading():
        pass
    assert "FSDP_CPU_RAM_EFFICIENT_LOADING" not in os.environ
    assert deepspeed._hf_deepspeed_config_weak_ref is None


def test_the_process_has_a_device() -> None:
    assert process_device().type in ("cpu", "cuda", "mps", "xpu")
