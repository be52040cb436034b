"""The reward's options from DYNAMICRUBRIC_* environment variables, for `trl grpo --config`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from openrlhf_dynamicrubric.errors import ConfigError
from openrlhf_dynamicrubric.evaluator import EvaluatorConfig

if TYPE_CHECKING:
    from openrlhf_dynamicrubric.trl.reward import DynamicRubricReward

PREFIX = "DYNAMICRUBRIC_"
ELSEWHERE = ("cache",)
"""Read by other parts of the package."""


def reward_from(environment: Mapping[str, str]) -> DynamicRubricReward:
    """The reward that an environment describes.

    The trainer, which loads its own model after its reward functions, may start from the folder of an embedded judge.

    Args:
        environment: see `reward_options`.

    Returns:
        The reward; its models are loaded when it is first called.

    Raises:
        ConfigError: see `reward_options`.
        MissingDependencyError, ModelLoadError: an embedded judge cannot be unpacked.
    """
    from openrlhf_dynamicrubric.trl.reward import DynamicRubricReward

    return DynamicRubricReward(**reward_options(environment))


def reward_options(environment: Mapping[str, str]) -> dict[str, Any]:
    """Arguments of DynamicRubricReward, out of an environment.

    DYNAMICRUBRIC_<FIELD> for each field of EvaluatorConfig, DYNAMICRUBRIC_RECORDS and DYNAMICRUBRIC_MAX_UNSCORABLE_STEPS.

    Args:
        environment: names and values, os.environ for example.

    Returns:
        Keyword arguments of their proper types; only what is set.

    Raises:
        ConfigError: an unknown DYNAMICRUBRIC_* name, or a value that is not of the option's type.

    Example:
        >>> reward_options({"DYNAMICRUBRIC_MAX_ITEMS": "4", "DYNAMICRUBRIC_CONSTRAINED_RUBRICS": "false", "HOME": "/root"})
        {'max_items': 4, 'constrained_rubrics': False}
    """
    hints = get_type_hints(EvaluatorConfig)
    types = {option.name: hints[option.name] for option in fields(EvaluatorConfig)}
    types |= {"records": str, "max_unscorable_steps": int}
    options: dict[str, Any] = {}
    for variable, value in environment.items():
        if not variable.startswith(PREFIX):
            continue
        name = variable.removeprefix(PREFIX).lower()
        if variable != variable.upper() or name not in types:
            if name in ELSEWHERE and variable == variable.upper():
                continue
            known = [PREFIX + option.upper() for option in (*types, *ELSEWHERE)]
            near = difflib.get_close_matches(variable.upper(), known, n=3) or known
            raise ConfigError(f"environment variable {variable} is no option; did you mean {' or '.join(near)}?")
        options[name] = _value(variable, value, types[name])
    return options


def _value(variable: str, value: str, kind: Any) -> Any:
    if kind is str:
        return value
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
        raise ConfigError(f"environment variable {variable} must be one of {', '.join(get_args(kind))}, got {value!r}")
    if kind is bool:
        flags = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        if value.strip().lower() in flags:
            return flags[value.strip().lower()]
        raise ConfigError(f"environment variable {variable} must be true or false, got {value!r}")
    try:
        return kind(value)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise ConfigError(f"environment variable {variable} must be {wanted}, got {value!r}") from None
