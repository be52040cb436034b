"""Options of the commands `sample`, `train-generator` and `train-policy`, read with TRL's own parser."""

from __future__ import annotations

import argparse
import dataclasses
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

import yaml
from trl.scripts.utils import TrlParser

from openrlhf_dynamicrubric.errors import ConfigError
from openrlhf_dynamicrubric.evaluator import EvaluatorConfig
from openrlhf_dynamicrubric.run_config import near

if TYPE_CHECKING:
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.model_config import ModelConfig

T = TypeVar("T")
CHAT_HELP = "Put a prompt that is plain text into one user turn; give sampling and policy training the same."
CHECK_HELP = "Read options, data and model folders, say what is wrong, and train nothing."
CONFIG_HELP = "YAML file whose keys have the same names as the flags, without the dashes; flags win over it"
THEIRS_HELP = (
    "All fields of TRL's GRPOConfig and ModelConfig are accepted too (--help-all lists them), "
    "and of these --model_name_or_path and --output_dir are needed."
)
METAVARS: dict[Any, str] = {int: "N", float: "X"}


@dataclass(frozen=True)
class SampleArguments:
    """How a policy answers anchor prompts."""

    model: str = field(default="embedded", metadata={"help": "Policy: a folder, a hub name, or `embedded`."})
    anchors: str = field(default="demo", metadata={"help": "JSONL file of prompts with ranked anchors, or `demo`."})
    output: str = field(
        default="responses.jsonl",
        metadata={"help": "File of response sets; progress.json and done.json come to lie beside it."},
    )
    num_responses: int = field(default=8, metadata={"help": "K, responses a prompt, at least 2. Paper: 8."})
    max_new_tokens: int = field(default=1024, metadata={"help": "Longest response, in tokens. Paper: 8192."})
    temperature: float = field(default=1.0, metadata={"help": "Sampling temperature."})
    top_p: float = field(default=1.0, metadata={"help": "Nucleus, in (0, 1]."})
    batch_prompts: int = field(default=4, metadata={"help": "Prompts answered at once on each process, each K times."})
    batch_tokens: int = field(default=65_536, metadata={"help": "Most tokens, padding included, in one forward pass."})
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = field(
        default="auto", metadata={"help": "Precision; `auto` takes that of the checkpoint."}
    )
    seed: int = field(default=0, metadata={"help": "Response k to prompt x depends on the seed, x and k alone."})
    max_prompts: int | None = field(default=None, metadata={"help": "Use only the first prompts."})
    chat_prompts: bool = field(default=False, metadata={"help": CHAT_HELP})
    check: bool = field(default=False, metadata={"help": CHECK_HELP})

    def __post_init__(self) -> None:
        for name, least in (("num_responses", 2), ("max_new_tokens", 1), ("batch_prompts", 1), ("batch_tokens", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.temperature < 0 or not 0 < self.top_p <= 1:
            raise ConfigError(
                f"temperature must be at least 0 and top_p lie in (0, 1], got {self.temperature} and {self.top_p}"
            )


@dataclass(frozen=True)
class GeneratorArguments(EvaluatorConfig):
    """What generator training takes besides TRL's own options."""

    response_sets: str = field(
        default="", metadata={"help": "JSONL file of response sets with anchors, as `sample` writes it."}
    )
    anchor_weight: float = field(
        default=1.0, metadata={"help": "lambda, weight of anchor ranking; 0 is the ablation without it. Paper: 1."}
    )
    use_discriminability: bool = field(default=True, metadata={"help": "False is the ablation without R_disc. Paper: true."})
    std_floor: float = field(
        default=0.0, metadata={"help": "Smallest standard deviation that rewards are divided by. Paper: not said."}
    )
    check: bool = field(default=False, metadata={"help": CHECK_HELP})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.anchor_weight >= 0 or not self.std_floor >= 0:
            raise ConfigError(f"anchor_weight and std_floor must be at least 0, got {self.anchor_weight} and {self.std_floor}")
        if self.anchor_weight == 0 and not self.use_discriminability:
            raise ConfigError("anchor_weight 0 without discriminability leaves nothing to train for; give one of the two")


@dataclass(frozen=True)
class PolicyArguments(EvaluatorConfig):
    """What policy training takes besides TRL's own options."""

    prompts: str = field(default="demo", metadata={"help": "JSONL file of prompts, or `demo`. Paper: 36K prompts."})
    max_prompts: int | None = field(default=None, metadata={"help": "Use only the first prompts."})
    chat_prompts: bool = field(default=False, metadata={"help": CHAT_HELP})
    check: bool = field(default=False, metadata={"help": CHECK_HELP})


@dataclass(frozen=True)
class TrainingArguments:
    """Options of a training command, read and checked for what can be known from them alone."""

    own: Any
    trainer: GRPOConfig
    model: ModelConfig

    @property
    def folder(self) -> Path:
        """Where the phase keeps its files."""
        return Path(str(self.trainer.output_dir))

    @property
    def judges(self) -> EvaluatorConfig:
        """The options of the judges alone."""
        return EvaluatorConfig(
            **{option.name: getattr(self.own, option.name) for option in dataclasses.fields(EvaluatorConfig)}
        )


class Parser(TrlParser):
    """TRL's parser, with errors that are one sentence.

    Overrides `error` of argparse, and `set_defaults_with_config` of TRL, which takes values of any type from a file.
    """

    def error(self, message: str) -> NoReturn:
        """Instead of printing the usage of 300 options."""
        raise ConfigError(message)

    def set_defaults_with_config(self, **kwargs: Any) -> list[str]:
        """Defaults from a file, each of the type that the option has.

        Raises:
            ConfigError: an unknown option, with the nearest known one, or a value of the wrong type.
        """
        actions = {action.dest: action for action in self._actions if action.type is not None}
        known = [action.dest for action in self._actions]
        for name, value in kwargs.items():
            if name not in known:
                raise ConfigError(f"unknown option {name}; {near(name, known)}")
            if name in actions and value is not None:
                _check_type(name, value, actions[name].type, actions[name].nargs)
        return super().set_defaults_with_config(**kwargs)


def parse(argv: Sequence[str], *kinds: type[T], prog: str = "dynamicrubric", description: str | None = None) -> tuple[Any, ...]:
    """The options of a command, from `--config FILE.yaml` and flags over it.

    Args:
        argv: words after the command's name.
        *kinds: dataclasses, this package's own first.
        prog: program and command, for the help.
        description: what the command does, for the help.

    Returns:
        One instance a dataclass.

    Raises:
        ConfigError: an unknown option, a wrong type, or values that the framework refuses; one sentence.
        SystemExit: help was asked for and shown.
    """
    if {"-h", "--help", *(["--help-all"] if kinds[1:] else [])} & {*argv}:
        helper = help_parser(*kinds, prog=prog, description=description, whole="--help-all" in argv)
        helper.print_help()
        helper.exit()
    parser = Parser(list(kinds), add_help=False)  # pyright: ignore[reportArgumentType]
    try:
        *options, rest = parser.parse_args_and_config(_config_apart(argv), return_remaining_strings=True)
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"the file of --config is not valid YAML: {' '.join(str(error).split())}") from None
    except (ValueError, TypeError, NotImplementedError) as error:  # how GRPOConfig and TrlParser refuse options
        raise ConfigError(" ".join(str(error).split())) from None
    if rest:
        name = rest[0].removeprefix("--").partition("=")[0].replace("-", "_")
        raise ConfigError(f"unknown option {rest[0]}; {near(name, [action.dest for action in parser._actions])}")
    return tuple(options)


def help_parser(own: type, *theirs: type, prog: str, description: str | None, whole: bool = False) -> Parser:
    """A parser that is there for its help alone: it lists `--config`, which TrlParser takes out before it parses.

    Args:
        own: this package's dataclass, listed first.
        *theirs: TRL's dataclasses.
        prog: program and command.
        description: what the command does.
        whole: list TRL's options too.
    """
    groups = {own: f"options of {prog}", **({kind: f"options of TRL's {kind.__name__}" for kind in theirs} if whole else {})}
    named = [type(kind.__name__, (kind,), {"_argument_group_name": group}) for kind, group in groups.items()]
    usage = f"%(prog)s [-h] {'[--help-all] ' if theirs else ''}[--config FILE.yaml] [--OPTION VALUE ...]"
    parser = Parser(named, prog=prog, usage=usage, description=description, epilog=THEIRS_HELP if theirs else None)  # pyright: ignore[reportArgumentType]
    for action in parser._actions:
        action.option_strings = action.option_strings[:1] if action.dest != "help" else action.option_strings
        if not action.choices:
            action.metavar = "true|false" if action.const is True else METAVARS.get(action.type)
        if action.nargs == 0 and action.dest != "help":
            action.help = f"the same as --{action.dest} false"
        if action.default in (None, "") or action.nargs == 0:
            action.default = argparse.SUPPRESS  # nothing that the help would have to say
    if theirs:
        parser.add_argument("--help-all", action="help", help="show TRL's options too, and exit")
    parser.add_argument("--config", metavar="FILE.yaml", default=argparse.SUPPRESS, help=CONFIG_HELP)
    return parser


def _config_apart(argv: Sequence[str]) -> list[str]:
    """`--config=FILE` as the two words that TrlParser looks for."""
    words = [part for word in argv for part in (word.split("=", 1) if word.startswith("--config=") else [word])]
    if words[-1:] == ["--config"]:
        raise ConfigError("--config needs the name of a YAML file")
    return words


def parse_training(
    argv: Sequence[str], own: type, *, prog: str = "dynamicrubric", description: str | None = None
) -> TrainingArguments:
    """The options of a training command.

    Args:
        argv: words after the command's name.
        own: GeneratorArguments or PolicyArguments.
        prog: program and command, for the help.
        description: what the command does, for the help.

    Raises:
        ConfigError: see `parse`, or options that these commands cannot follow.
    """
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.model_config import ModelConfig

    arguments = TrainingArguments(*parse(argv, own, GRPOConfig, ModelConfig, prog=prog, description=description))
    if not arguments.trainer.output_dir:
        raise ConfigError("output_dir is missing: name the folder of the phase")
    if not arguments.model.model_name_or_path:
        raise ConfigError("model_name_or_path is missing: name the model to train")
    strategy = str(getattr(arguments.trainer.eval_strategy, "value", arguments.trainer.eval_strategy))
    if strategy != "no":
        raise ConfigError(f"eval_strategy {strategy}: this command has no evaluation data; leave it out")
    if arguments.model.use_peft:
        raise ConfigError("use_peft: the next phase needs whole models, and adapters are not merged here; leave use_peft out")
    return arguments


def model_options(arguments: TrainingArguments) -> dict[str, Any]:
    """How the trainer loads its model: what `trl grpo` makes of the same options."""
    model = arguments.model
    options = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(arguments.trainer.model_init_kwargs or {}),  # pyright: ignore[reportGeneralTypeIssues]
    }
    return {name: value for name, value in options.items() if value is not None}


def _check_type(name: str, value: Any, kind: Any, nargs: Any) -> None:
    values = value if isinstance(value, list) and nargs == "+" else [value]
    for one in values:
        if isinstance(one, dict | list) or isinstance(kind, types.GenericAlias):
            continue
        try:
            kind(str(one))
        except argparse.ArgumentTypeError as error:
            raise ConfigError(f"{name}: {error}") from None
        except (ValueError, TypeError, AttributeError) as error:
            wanted = {int: "a whole number", float: "a number"}.get(kind, str(error) or "another value")
            raise ConfigError(f"{name} must be {wanted}, got {one!r}") from None
