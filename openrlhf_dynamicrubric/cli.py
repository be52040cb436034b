"""`dynamicrubric <command>`: each command is a module of its own, loaded when it is asked for."""

from __future__ import annotations

import argparse
import errno
import importlib
import sys
from collections.abc import Sequence

from openrlhf_dynamicrubric import processes
from openrlhf_dynamicrubric.errors import DynamicRubricError

COMMANDS = {
    "coevolve": ("coevolution", "rounds of sampling, generator training and policy training, from one YAML file"),
    "sample": ("trl.sample", "a phase: the policy answers the anchor prompts"),
    "train-generator": ("trl.train_generator", "a phase: trains the generator on response sets with ranked anchors"),
    "train-policy": ("trl.train_policy", "a phase: trains the policy under a frozen generator"),
    "check": ("trl.check", "reads a run's options and data as its phases would, without training"),
    "score": ("score", "scores response sets without training"),
    "report": ("report", "one HTML page about a run"),
}
PHASES = ("sample", "train-generator", "train-policy", "check")
OPTIONAL = ("torch", "transformers", "trl", "accelerate", "datasets", "llguidance", "gguf", "safetensors")
"""Packages that the extra `trl` or `demo` brings."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: words after the program's name; None takes the process's own.

    Returns:
        The exit code: 0, 1 after an error that was said in one line, 130 after an interrupt.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    command = _parser().parse_args(argv[:1]).command
    module, _ = COMMANDS[command]
    if command in PHASES:
        processes.follow_leader()
    try:
        return importlib.import_module(f"openrlhf_dynamicrubric.{module}").main(argv[1:])
    except DynamicRubricError as error:
        _complain(str(error))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _complain(f"{command}: {error.strerror} for {error.filename or 'its files'}; make room, and the same command goes on")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in OPTIONAL:
            raise
        _complain(f"{command} needs {package}: pip install 'openrlhf_dynamicrubric[trl]'")
    except KeyboardInterrupt:
        _complain("stopped; the same command goes on from here" if command == "coevolve" else "stopped")
        return 130
    return 1


def _parser() -> argparse.ArgumentParser:
    from openrlhf_dynamicrubric import __version__

    lines = [f"  {name:16} {help}" for name, (_, help) in COMMANDS.items()]
    parser = argparse.ArgumentParser(
        prog="dynamicrubric",
        description="Rubric rewards that are written for the responses a policy gives now.",
        epilog="\n".join(["commands (each takes --help):", *lines]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("command", choices=COMMANDS, metavar="command", help="one of the commands below")
    return parser


def _complain(text: str) -> None:
    from rich.console import Console

    head, _, rest = text.partition("\n")
    console = Console(stderr=True)
    console.print(f"error: {head}", style="red", markup=False, highlight=False, soft_wrap=True)
    if rest:
        console.print(rest, markup=False, highlight=False, soft_wrap=True)
