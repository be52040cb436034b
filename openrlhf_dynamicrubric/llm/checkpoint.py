"""Causal language models from folders and hubs, loaded whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from openrlhf_dynamicrubric.errors import MissingDependencyError, ModelLoadError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_SHOWN = 3

_FSDP_LOADING = "FSDP_CPU_RAM_EFFICIENT_LOADING"
"""Where accelerate tells transformers that only rank 0 loads."""


def load_causal_lm(path: str | Path, *, dtype: str = "auto", device: str | torch.device | None = None) -> PreTrainedModel:
    """A causal language model with every weight of its checkpoint, in eval mode.

    Args:
        path: a folder, or a name on a hub.
        dtype: "auto" (that of the checkpoint), "float32", "bfloat16" or "float16".
        device: where to put it; None leaves it on the CPU.

    Returns:
        The model.

    Raises:
        ModelLoadError: no such model, files missing or damaged, weights missing, left over or of another shape, not a
            causal language model.
    """
    model = _load(path, dtype=dtype, device_map=None)
    return model.to(device).eval() if device is not None else model.eval()  # type: ignore[arg-type]


def check_checkpoint(path: str | Path) -> int:
    """Passes where `load_causal_lm` and `load_tokenizer` would, without memory or time for the weights.

    Args:
        path: a folder, or a name on a hub.

    Returns:
        How many parameters the model has.

    Raises:
        ModelLoadError: as `load_causal_lm`.
    """
    model = _load(path, dtype="auto", device_map="meta")
    load_tokenizer(path)
    return model.num_parameters()


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer beside a model, padding on the left, with a pad token.

    Args:
        path: a folder, or a name on a hub.

    Returns:
        The tokenizer.

    Raises:
        ModelLoadError: there is none.
    """
    AutoTokenizer = require_transformers().AutoTokenizer
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(str(path), padding_side="left")
    except (OSError, ValueError, KeyError) as error:
        raise ModelLoadError(f"{path} has no tokenizer that can be read: {_first_line(error)}") from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token_id is None:
        raise ModelLoadError(f"the tokenizer of {path} has neither a pad token nor an end token; set one and save it again")
    return tokenizer


def process_device() -> torch.device:
    """The device that accelerate gives this process."""
    try:
        from accelerate import PartialState
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return cast("torch.device", PartialState().device)


@contextmanager
def without_sharded_loading() -> Iterator[None]:
    """Models loaded inside are whole on every rank, also where DeepSpeed ZeRO-3 or FSDP shard the trainer's own.

    A sharded judge would need all ranks in every forward pass, and ranks judge different groups; and under FSDP's
    cpu_ram_efficient_loading a model is whole on rank 0 alone until FSDP hands it out, which it does not do for judges.
    """
    from transformers.integrations import deepspeed

    zero = deepspeed._hf_deepspeed_config_weak_ref
    fsdp = os.environ.get(_FSDP_LOADING)
    deepspeed._hf_deepspeed_config_weak_ref = None
    os.environ[_FSDP_LOADING] = "false"
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = zero
        if fsdp is None:
            del os.environ[_FSDP_LOADING]
        else:
            os.environ[_FSDP_LOADING] = fsdp


@contextmanager
def quiet(*, bars: bool = False) -> Iterator[None]:
    """Without the notices that transformers writes while it loads and saves.

    Args:
        bars: keep progress bars: of a download, which may take long.
    """
    from transformers.utils import logging

    had_bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.set_verbosity_error()
    if not bars:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()


def _load(path: str | Path, *, dtype: str, device_map: str | None) -> PreTrainedModel:
    AutoModelForCausalLM = require_transformers().AutoModelForCausalLM
    from safetensors import SafetensorError

    _check_folder(path)
    try:
        with without_sharded_loading(), quiet(bars=not Path(path).is_dir()):
            model, info = AutoModelForCausalLM.from_pretrained(
                str(path), dtype=dtype, device_map=device_map, output_loading_info=True, ignore_mismatched_sizes=True
            )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelLoadError(f"{path} cannot be loaded as a causal language model: {_first_line(error)}") from error
    _check_weights(path, info)
    return model


def _check_folder(name: str | Path) -> None:
    path = Path(name)
    if not path.is_dir():
        if isinstance(name, Path) or name.startswith(("/", ".", "~")) or name.count("/") > 1:
            raise ModelLoadError(f"there is no folder {name}")
        return  # a name on a hub: owner/model
    if (path / "config.json").is_file():
        return
    if (path / "adapter_config.json").is_file():
        raise ModelLoadError(f"{name} holds an adapter without its model; merge the two and name the merged folder")
    raise ModelLoadError(f"{name} is not a model: it has no config.json")


def _check_weights(path: str | Path, info: Mapping[str, Any]) -> None:
    for key, meaning in (
        ("mismatched_keys", "weights have another shape than config.json says"),
        ("missing_keys", "weights are missing"),
        ("unexpected_keys", "weights do not belong to this architecture"),
    ):
        names = sorted(str(entry if isinstance(entry, str) else entry[0]) for entry in info[key])
        if names:
            shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
            raise ModelLoadError(f"{path}: {len(names)} {meaning}: {shown}")
    if info["error_msgs"]:
        raise ModelLoadError(f"{path} cannot be loaded: {info['error_msgs'][0]}")


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def require_transformers() -> Any:
    """The transformers package.

    Raises:
        MissingDependencyError: it, or torch, is not installed.
    """
    try:
        import torch  # noqa: F401
        import transformers
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return transformers


def _missing(error: ModuleNotFoundError) -> MissingDependencyError:
    return MissingDependencyError(
        f"judges in this process need {error.name}: pip install 'openrlhf_dynamicrubric[trl]', "
        "or for the embedded model 'openrlhf_dynamicrubric[demo]'"
    )
