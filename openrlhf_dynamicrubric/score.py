"""`dynamicrubric score`: rubrics, verdicts and scores for response sets, without training."""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from openrlhf_dynamicrubric import aio
from openrlhf_dynamicrubric.anchors import read_response_sets
from openrlhf_dynamicrubric.display import model_name
from openrlhf_dynamicrubric.errors import ConfigError, DataError, RubricParseError
from openrlhf_dynamicrubric.evaluator import Evaluator, EvaluatorConfig
from openrlhf_dynamicrubric.parsing import parse_rubric
from openrlhf_dynamicrubric.records import RecordFile, group_record, usage_record
from openrlhf_dynamicrubric.types import Evaluation, ResponseSet, Rubric, Unscorable

MOST_ITEMS_GIVEN = 1_000
PLAIN_SECONDS = 15.0
"""Longest silence where there is no terminal, in seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """One response set and what became of it.

    Args:
        outcome: its scores, or why there are none.
        anchors: its anchors under the same rubric; None where it has fewer than two, or a verdict on them is missing.
    """

    outcome: Evaluation | Unscorable
    anchors: Evaluation | None = None

    def record(self) -> dict[str, Any]:
        """What is kept of it: a group's record, with the anchors' verdicts and scores where there are any."""
        row = group_record(self.outcome)
        if self.anchors is None:
            return row
        return {
            **row,
            "verifier_usage": usage_record(self.outcome.verifier_usage + self.anchors.verifier_usage),
            "anchor_scores": self.anchors.scores_K.tolist(),
            "anchor_verdicts": self.anchors.verdicts_MK.astype(int).tolist(),
            "anchor_probabilities": self.anchors.probabilities_MK.round(6).tolist(),
        }


async def score_set(evaluator: Evaluator, response_set: ResponseSet, *, rubric: Rubric | None = None) -> Scored:
    """One response set, with a rubric of its own or a given one; and its anchors under the same rubric.

    Args:
        evaluator: the judges.
        response_set: x, C and, where there are any, anchors.
        rubric: judge with this one; without it the generator writes one.

    Returns:
        The outcome. Anchors are left out, never scored in part, where a verdict on them is missing.
    """
    outcome = await (evaluator.judge(rubric, response_set) if rubric else evaluator.evaluate(response_set))
    if isinstance(outcome, Unscorable) or len(response_set.anchors) < 2:
        return Scored(outcome)
    anchors = await evaluator.judge(outcome.rubric, replace(response_set, responses=response_set.anchors, anchors=()))
    whole = isinstance(anchors, Evaluation) and not anchors.dropped
    return Scored(outcome, anchors if whole and isinstance(anchors, Evaluation) else None)


async def score_sets(
    evaluator: Evaluator,
    response_sets: Sequence[ResponseSet],
    *,
    rubric: Rubric | None = None,
    concurrency: int = 8,
    done: Callable[[int, Scored], None] = lambda index, scored: None,
) -> list[Scored]:
    """Response sets, several at once.

    Args:
        evaluator: the judges.
        response_sets: what to score.
        rubric: see `score_set`.
        concurrency: most sets at once, at least 1.
        done: told of each set when it is through, in the order in which they get through.

    Returns:
        One result a set, in the order of the input.
    """
    free = asyncio.Semaphore(concurrency)

    async def one(index: int) -> Scored:
        async with free:
            scored = await score_set(evaluator, response_sets[index], rubric=rubric)
        done(index, scored)
        return scored

    tasks = [asyncio.create_task(one(index)) for index in range(len(response_sets))]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:  # after an error, or an interrupt, nobody waits for the others
            task.cancel()


def read_rubric_file(path: Path) -> Rubric:
    """The rubric in a file, as a generator would write it.

    Raises:
        DataError: no such file, or not a valid rubric; the message names the file.
    """
    try:
        return parse_rubric(path.read_text(encoding="utf-8"), max_items=MOST_ITEMS_GIVEN)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except RubricParseError as error:
        raise DataError(f"{path} holds no valid rubric: {error}") from None


@dataclass(slots=True)
class InOrder:
    """Records of sets that get through in any order, written in the order of the input as soon as it allows."""

    file: RecordFile
    waiting: dict[int, Scored] = field(default_factory=dict)
    next: int = 0

    def add(self, index: int, scored: Scored) -> None:
        """One set is through."""
        self.waiting[index] = scored
        rows = []
        while self.next in self.waiting:
            rows.append(self.waiting.pop(self.next).record())
            self.next += 1
        if rows:
            self.file.append(rows, step=0)


def main(argv: Sequence[str]) -> int:
    """The command `dynamicrubric score`.

    Args:
        argv: the words after the command's name.

    Returns:
        The exit code: 0, or 1 where nothing could be scored.

    Raises:
        DataError: a file is not what it should be.
        ConfigError: an option cannot work.
        ModelLoadError, MissingDependencyError: a judge cannot be loaded.
    """
    from rich.console import Console

    from openrlhf_dynamicrubric import score_tables

    # The fields' own spelling, with underscores, is taken as well.
    options = _parser().parse_args([re.sub(r"^--[a-z_]+", lambda name: name[0].replace("_", "-"), word) for word in argv])
    config = EvaluatorConfig(**{option.name: getattr(options, option.name) for option in fields(EvaluatorConfig)})
    for name in ("concurrency", "limit"):
        if (value := getattr(options, name)) is not None and value < 1:
            raise ConfigError(f"--{name} must be at least 1, got {value}")
    response_sets = read_response_sets(options.file)[: options.limit]
    rubric = read_rubric_file(options.rubric) if options.rubric else None
    records = _records(options.output, config, rubric) if options.output else None
    evaluator = _load(config, with_generator=rubric is None)
    started = time.monotonic()
    with _progress(Console(stderr=True), len(response_sets)) as advance:

        def done(index: int, scored: Scored) -> None:
            if records:
                records.add(index, scored)
            advance()

        scoring = score_sets(evaluator, response_sets, rubric=rubric, concurrency=options.concurrency, done=done)
        try:
            results = aio.run(scoring)
        except OSError as error:
            raise DataError(f"records cannot be written to {options.output}: {error.strerror}") from None
    console = Console()
    for number, scored in list(enumerate(results, start=1))[: options.show]:
        score_tables.show_set(console, number, scored.outcome, scored.anchors)
    score_tables.show_summary(console, [(s.outcome, s.anchors) for s in results], seconds=time.monotonic() - started)
    if "embedded" in {config.verifier, *([] if rubric else [config.generator])}:
        console.print(
            "Judged by the embedded 135M model: it proves that everything runs, and nothing about quality.", style="yellow"
        )
    if records:
        console.print(f"Records: {records.file.path}", markup=False, highlight=False, soft_wrap=True)
    return 0 if any(isinstance(scored.outcome, Evaluation) for scored in results) else 1


def _load(config: EvaluatorConfig, *, with_generator: bool) -> Evaluator:
    from rich.console import Console

    from openrlhf_dynamicrubric.llm.load import load_evaluator

    console = Console(stderr=True)
    names = dict.fromkeys([config.generator, config.verifier] if with_generator else [config.verifier])
    if not console.is_terminal:
        return load_evaluator(config, with_generator=with_generator)
    with console.status(f"loading {', '.join(names)}".replace("[", "\\[")):
        return load_evaluator(config, with_generator=with_generator)


def _records(folder: Path, config: EvaluatorConfig, rubric: Rubric | None) -> InOrder:
    path = folder / "records" / "groups.jsonl"
    if path.exists():
        raise ConfigError(f"{path} exists already; name another folder with --output, or remove it")
    names = {"verifier": config.verifier} if rubric else {"generator": config.generator, "verifier": config.verifier}
    return InOrder(RecordFile(path, **{role: model_name(name) for role, name in names.items()}))


@contextmanager
def _progress(console: Any, total: int) -> Iterator[Callable[[], None]]:
    """Gives a function to call after each set: a bar on a terminal, a line now and then elsewhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    if console.is_terminal:
        words = (
            TextColumn("scoring"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*words, console=console, transient=True) as progress:
            task = progress.add_task("", total=total)
            yield lambda: progress.advance(task)
        return
    through, said = 0, time.monotonic()

    def advance() -> None:
        nonlocal through, said
        through += 1
        if time.monotonic() - said >= PLAIN_SECONDS:
            said = time.monotonic()
            console.print(f"scored {through} of {total}", markup=False, highlight=False)

    yield advance


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dynamicrubric score",
        description="Scores response sets, without training.",
    )
    parser.add_argument(
        "file", metavar="FILE.jsonl", type=Path, help="response sets, a line each: prompt, responses, optionally anchors, id"
    )
    parser.add_argument("--rubric", metavar="FILE", type=Path, help="judge all sets with this rubric (JSON); none is written")
    parser.add_argument("--output", metavar="FOLDER", type=Path, help="keep records there, for `dynamicrubric report FOLDER`")
    parser.add_argument("--limit", metavar="N", type=int, help="score the first N sets only")
    parser.add_argument("--show", metavar="N", type=int, default=3, help="print the first N sets in full (default: 3)")
    parser.add_argument("--concurrency", metavar="N", type=int, default=8, help="most sets at once (default: 8)")
    add_options(parser.add_argument_group("judges"), also={"judge_seed": "--seed"})
    return parser


def add_options(parser: Any, *, also: dict[str, str]) -> None:
    """One option for each field of `EvaluatorConfig`.

    Args:
        parser: an argparse parser, or group.
        also: a further spelling for some fields.
    """
    hints = get_type_hints(EvaluatorConfig)
    for option in fields(EvaluatorConfig):
        words = [f"--{option.name.replace('_', '-')}"] + ([also[option.name]] if option.name in also else [])
        hint = hints[option.name]
        text = f"{option.metadata['help']} (default: {option.default})".replace("%", "%%")
        settings: dict[str, Any] = {"dest": option.name, "default": option.default, "help": text}
        if hint is bool:
            settings["action"] = argparse.BooleanOptionalAction
        elif get_origin(hint) is Literal:
            settings["choices"] = get_args(hint)
        else:
            settings |= {"type": hint, "metavar": {str: "NAME", int: "N", float: "X"}[hint]}
        parser.add_argument(*words, **settings)
