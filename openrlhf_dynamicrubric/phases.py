"""The phases of a run: their folders, options and commands. Knows files and words, no framework."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openrlhf_dynamicrubric.files import write_atomic
from openrlhf_dynamicrubric.run_config import RunConfig

MODULE = "openrlhf_dynamicrubric"
SAMPLE, TRAIN_GENERATOR, TRAIN_POLICY = KINDS = ("sample", "train-generator", "train-policy")
OPTIONS, DONE, PROGRESS, LOG, LOCK = "phase.yaml", "done.json", "progress.json", "log.txt", ".lock"


@dataclass(frozen=True)
class Phase:
    """One process of a run.

    Args:
        round: t, from 1.
        kind: one of `KINDS`.
        folder: where its files are.
        options: what its command reads, as flat keys.
        words: the command before the phase's name, for example `python -m openrlhf_dynamicrubric`.
    """

    round: int
    kind: str
    folder: Path
    options: dict[str, Any]
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"round {self.round} {self.kind}"

    @property
    def command(self) -> list[str]:
        """What starts it; can be run by hand as well."""
        return [*self.words, self.kind, "--config", str(self.folder / OPTIONS)]

    @property
    def artefact(self) -> Path:
        """What the next phase reads."""
        return self.folder / ("responses.jsonl" if self.kind == SAMPLE else "model")

    @property
    def complete(self) -> bool:
        """It ended well, and need not run again."""
        return (self.folder / DONE).is_file()

    def write_options(self) -> None:
        """The file that its command reads."""
        import yaml

        head = f"# {self.name}: {shlex.join(self.command)}\n"
        write_atomic(self.folder / OPTIONS, head + yaml.safe_dump(self.options, sort_keys=False, allow_unicode=True))


def plan(config: RunConfig) -> list[Phase]:
    """All phases of a run, in order.

    Example:
        >>> [phase.name for phase in plan(RunConfig(output_dir="run", rounds=1))]
        ['round 1 sample', 'round 1 train-generator', 'round 1 train-policy']
    """
    phases: list[Phase] = []
    policy, generator = config.models.policy, config.models.generator
    for number in range(1, config.rounds + 1):
        folder = config.folder / f"round-{number:02d}"
        if config.generator_rounds is None or number <= config.generator_rounds:
            sampled = policy if config.sample_from == "current" else config.models.policy
            sample = _phase(config, number, SAMPLE, folder, _sample_options(config, number, sampled))
            train = _phase(config, number, TRAIN_GENERATOR, folder, _generator_options(config, generator, sample.artefact))
            phases += [sample, train]
            generator = str(train.artefact)
        phases.append(_phase(config, number, TRAIN_POLICY, folder, _policy_options(config, policy, generator)))
        policy = str(phases[-1].artefact)
    return phases


def launch_words(words: tuple[str, ...] | None) -> tuple[str, ...]:
    """The command before a phase's name: the user's words, or this Python."""
    return (*(words or (sys.executable, "-m")), MODULE)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object on disk; empty where there is none, or none that is whole."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _phase(config: RunConfig, number: int, kind: str, folder: Path, options: dict[str, Any]) -> Phase:
    launch = {SAMPLE: config.launch.sample, TRAIN_GENERATOR: config.launch.generator, TRAIN_POLICY: config.launch.policy}
    folder = folder / kind
    if kind == SAMPLE:
        head: dict[str, Any] = {"output": str(folder / "responses.jsonl")}
    else:
        head = {"output_dir": str(folder), "report_to": "none"}
    return Phase(number, kind, folder, {**head, "seed": config.seed + number, **options}, launch_words(launch[kind]))


def _sample_options(config: RunConfig, number: int, policy: str) -> dict[str, Any]:
    options = {
        "model": policy,
        "anchors": config.anchors,
        "max_prompts": config.max_anchor_prompts,
        "chat_prompts": config.chat_prompts,
        **dataclasses.asdict(config.sample),
    }
    return _given(options)


def _generator_options(config: RunConfig, generator: str, responses: Path) -> dict[str, Any]:
    options = {"model_name_or_path": generator, "response_sets": str(responses), **_judge_options(config, generator)}
    return {**_given(options), **config.generator}


def _policy_options(config: RunConfig, policy: str, generator: str) -> dict[str, Any]:
    options = {
        "model_name_or_path": policy,
        "prompts": config.prompts,
        "max_prompts": config.max_policy_prompts,
        "chat_prompts": config.chat_prompts,
        **_judge_options(config, generator),
    }
    return {**_given(options), **config.policy}


def _judge_options(config: RunConfig, generator: str) -> dict[str, Any]:
    return {**dataclasses.asdict(config.judge), "generator": generator, "verifier": config.models.verifier}


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
