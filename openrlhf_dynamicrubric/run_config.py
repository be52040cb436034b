"""Options of a co-evolution run: read from YAML, checked once, and compared with those a run was begun with."""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from openrlhf_dynamicrubric.errors import ConfigError
from openrlhf_dynamicrubric.evaluator import EvaluatorConfig

SET_BY_RUN = {"output_dir", "seed", "model_name_or_path", "resume_from_checkpoint", "config", "check"}
"""Options of a training phase that the run itself decides."""


def _option(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class ModelsConfig:
    """The models that round 1 begins with: a folder, a hub name, or `embedded` (SmolLM2-135M)."""

    policy: str = _option("embedded", "DR-Policy P_0. Paper: Qwen3-8B.")
    generator: str = _option("embedded", "DR-Generator G_0. Paper: Qwen3-8B.")
    verifier: str = _option("embedded", "DR-Verifier, never trained. Paper: Qwen3-8B.")


@dataclass(frozen=True)
class SampleConfig:
    """How the policy answers the anchor prompts at the beginning of a round."""

    num_responses: int = _option(8, "K, responses a prompt, at least 2. Paper: 8.")
    max_new_tokens: int = _option(1024, "Longest response, in tokens. Paper: 8192.")
    temperature: float = _option(1.0, "Sampling temperature.")
    top_p: float = _option(1.0, "Nucleus, in (0, 1].")
    batch_prompts: int = _option(4, "Prompts that are answered at once on each process; each brings K responses.")
    batch_tokens: int = _option(65_536, "Most tokens, padding included, in one forward pass.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = _option("auto", "Precision of the sampling policy.")

    def __post_init__(self) -> None:
        _require("sample.num_responses", self.num_responses, at_least=2)
        _require("sample.max_new_tokens", self.max_new_tokens, at_least=1)
        _require("sample.temperature", self.temperature, at_least=0)
        _require("sample.batch_prompts", self.batch_prompts, at_least=1)
        _require("sample.batch_tokens", self.batch_tokens, at_least=1)
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"sample.top_p must lie in (0, 1], got {self.top_p}")


@dataclass(frozen=True)
class LaunchConfig:
    """Words before `openrlhf_dynamicrubric <phase>`; null is this Python with -m."""

    sample: tuple[str, ...] | None = _option(None, "For example [torchrun, --nproc_per_node, 8, -m].")
    generator: tuple[str, ...] | None = _option(None, "For example [accelerate, launch, --config_file, zero3.yaml, -m].")
    policy: tuple[str, ...] | None = _option(None, "As `generator`.")


@dataclass(frozen=True)
class RunConfig:
    """A co-evolution run: T rounds of sampling, generator training and policy training.

    `generator` and `policy` hold options of the training framework itself (TRL: fields of GRPOConfig and ModelConfig);
    `generator` also takes anchor_weight, use_discriminability and std_floor. They go to the framework as they are.
    """

    output_dir: str = _option("", "Folder of the run; the same command on the same folder continues it.")
    rounds: int = _option(2, "T. May be raised later.")
    seed: int = _option(0, "Seed of the run; round t uses seed + t.")
    anchors: str = _option("demo", "JSONL file of prompts with ranked anchors, or `demo`. Paper: 24K prompts of Nectar.")
    prompts: str = _option("demo", "JSONL file of policy prompts, or `demo`. Paper: 36K prompts.")
    max_anchor_prompts: int | None = _option(None, "Use only the first anchor prompts; null uses all.")
    max_policy_prompts: int | None = _option(None, "Use only the first policy prompts; null uses all.")
    chat_prompts: bool = _option(False, "Put a prompt that is plain text into one user turn, in sampling and in training.")
    sample_from: Literal["current", "initial"] = _option(
        "current", "Policy that answers the anchor prompts; `initial` is the ablation with stale responses (P_0)."
    )
    generator_rounds: int | None = _option(
        None, "Train the generator in the first N rounds only: the ablation with a stale generator; null trains it in all."
    )
    keep_checkpoints: bool = _option(False, "Keep the checkpoints of a complete phase; they hold the optimiser's state.")
    models: ModelsConfig = field(default_factory=ModelsConfig, metadata={"help": "The models that round 1 begins with."})
    judge: EvaluatorConfig = field(
        default_factory=EvaluatorConfig, metadata={"help": "Rubric writing and judging, in both training phases."}
    )
    sample: SampleConfig = field(default_factory=SampleConfig, metadata={"help": "How the policy answers the anchor prompts."})
    generator: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "Options of generator training. Paper: lr 5e-6, KL 0.01, batch 256."}
    )
    policy: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "Options of policy training. Paper: lr 1e-6, KL 0.01, batch 256, K 8."}
    )
    launch: LaunchConfig = field(default_factory=LaunchConfig, metadata={"help": "How the phases are started."})

    def __post_init__(self) -> None:
        if not self.output_dir:
            raise ConfigError("output_dir is missing: name the folder of the run")
        _require("rounds", self.rounds, at_least=1)
        _require("seed", self.seed, at_least=0)
        for name in ("max_anchor_prompts", "max_policy_prompts"):
            _require(name, getattr(self, name), at_least=1)
        _require("generator_rounds", self.generator_rounds, at_least=0)
        judge_options = {option.name for option in dataclasses.fields(EvaluatorConfig)}
        for block, data in (("generator", {"response_sets"}), ("policy", {"prompts", "max_prompts", "chat_prompts"})):
            for name in getattr(self, block):
                if name in SET_BY_RUN | data:
                    raise ConfigError(f"{block}.{name} is set by the run; take it out of the block `{block}`")
                if re.search(r"(^|_)(token|password|secret|api_key)$", name):
                    raise ConfigError(
                        f"{block}.{name} would be written into the run's files; take it out and set the environment variable "
                        "that the library reads in its place (HF_TOKEN for a hub)"
                    )
                if name in judge_options:
                    raise ConfigError(f"{block}.{name} is an option of the judges; write it as judge.{name}")

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return Path(self.output_dir)


def load_run_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The options in a YAML file.

    Args:
        path: the file.
        overrides: `key.sub=value`, the value in YAML; each wins over the file.

    Returns:
        The checked options.

    Raises:
        ConfigError: no such file, not YAML, an unknown key (with the nearest known one), or a value of the wrong type.
    """
    import yaml

    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold keys and values, got {type(values).__name__}")
    for override in overrides:
        _override(values, override)
    return run_config(values)


def run_config(values: Mapping[str, Any]) -> RunConfig:
    """The options in a nested mapping; inverse of `config_values`.

    Raises:
        ConfigError: see `load_run_config`.

    Example:
        >>> run_config({"output_dir": "runs/a", "sample": {"num_responses": 4}}).sample.num_responses
        4
    """
    return _build(RunConfig, values, "")


def config_values(config: RunConfig) -> dict[str, Any]:
    """The options as plain values for JSON. The judges' models stand under `models` only."""
    values = dataclasses.asdict(config)
    for name in ("generator", "verifier"):
        del values["judge"][name]
    for name, words in values["launch"].items():
        values["launch"][name] = None if words is None else list(words)
    return values


def changed_keys(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Each key whose value differs, as `block.key`, with both values; a missing one is None.

    Example:
        >>> list(changed_keys({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}}))
        [('b.c', 2, 3)]
    """
    for key in dict.fromkeys((*old, *new)):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from changed_keys(before, after, f"{prefix}{key}.")
        elif before != after:
            yield f"{prefix}{key}", before, after


def near(name: str, known: Sequence[str]) -> str:
    """The end of a sentence about an unknown name: the nearest known ones, or all of a few."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"known are {', '.join(sorted(known))}" if len(known) <= 20 else "see the framework's documentation"


def _override(values: dict[str, Any], override: str) -> None:
    import yaml

    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set takes key=value or block.key=value, got {override!r}")
    *blocks, name = key.split(".")
    for block in blocks:
        if values.get(block) is None:
            values[block] = {}
        if not isinstance(values[block], dict):
            raise ConfigError(f"--set {override}: {block} is not a block of options")
        values = values[block]
    try:
        values[name] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {override}: not YAML: {' '.join(str(error).split())}") from None


def _build(kind: type, values: Any, where: str) -> Any:
    values = {} if values is None else values  # a block of which every line is a comment
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where.rstrip('.')} must be a block of options, got {values!r}")
    hints = typing.get_type_hints(kind)
    if kind is EvaluatorConfig:
        for name in ("generator", "verifier"):
            if name in values:
                raise ConfigError(f"{where}{name} belongs under models: write models.{name}")
            del hints[name]
    for name in values:
        if name not in hints:
            raise ConfigError(f"unknown option {where}{name}; {near(str(name), list(hints))}")
    try:
        return kind(**{name: _value(hints[name], value, f"{where}{name}") for name, value in values.items()})
    except ConfigError as error:
        if kind is EvaluatorConfig and not str(error).startswith(where):
            raise ConfigError(f"{where}{error}") from None
        raise


def _value(hint: Any, value: Any, where: str) -> Any:
    """The value as the type hint wants it; numbers may stand for words of a command, 1e-5 for a number."""
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type, hint), value, f"{where}.")
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        kinds = [kind for kind in inner if kind is not type(None)]
        return None if value is None and len(kinds) < len(inner) else _value(kinds[0], value, where)
    if origin is Literal:
        if value not in inner:
            raise ConfigError(f"{where} must be one of {', '.join(map(str, inner))}, got {value!r}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple) or not all(isinstance(word, str | int | float) for word in value):
            raise ConfigError(f"{where} must be a list of words, got {value!r}")
        return tuple(map(str, value))
    if origin is dict:
        value = {} if value is None else value
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise ConfigError(f"{where} must be a block of options, got {value!r}")
        return dict(value)
    if hint is float and isinstance(value, int | str) and not isinstance(value, bool):
        return _number(value, where)  # YAML 1.1 reads 1e-5 as text
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        names = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
        raise ConfigError(f"{where} must be {names[hint]}, got {value!r}")
    return value


def _number(value: int | str, where: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ConfigError(f"{where} must be a number, got {value!r}") from None


def _require(name: str, value: float | None, *, at_least: int) -> None:
    if value is not None and not value >= at_least:
        raise ConfigError(f"{name} must be at least {at_least}, got {value}")
