"""`dynamicrubric sample`: the policy answers every anchor prompt K times."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from openrlhf_dynamicrubric import aio, processes, prompts
from openrlhf_dynamicrubric.anchors import read_anchors
from openrlhf_dynamicrubric.errors import ModelCallError, PhaseError
from openrlhf_dynamicrubric.files import append_lines, json_line, write_atomic
from openrlhf_dynamicrubric.llm.base import LanguageModel
from openrlhf_dynamicrubric.phases import DONE, LOCK, SAMPLE
from openrlhf_dynamicrubric.trl.arguments import SampleArguments, parse
from openrlhf_dynamicrubric.trl.callbacks import ProgressFile
from openrlhf_dynamicrubric.trl.training import as_prompt, write_done

logger = logging.getLogger(__name__)
Row = dict[str, Any]


def main(argv: Sequence[str]) -> int:
    """Writes a response set for each anchor prompt; see `SampleArguments`.

    Under torchrun or accelerate each process answers a part of the prompts. The result depends on neither their number nor on
    interruptions: prompts are answered in batches that are always the same, and a batch that was written is not repeated.

    Returns:
        The exit code 0.

    Raises:
        DynamicRubricError: what is wrong, in one sentence.
    """
    (arguments,) = parse(argv, SampleArguments, prog=f"dynamicrubric {SAMPLE}", description=__doc__)
    if arguments.check:
        from openrlhf_dynamicrubric.trl.check import check_sample, say

        return say(check_sample(arguments))
    output = Path(arguments.output)
    with processes.sole_worker(output.parent / LOCK):
        if processes.main_rank():
            (output.parent / DONE).unlink(missing_ok=True)
        rows = read_anchors(arguments.anchors, limit=arguments.max_prompts)
        batches = [rows[start : start + arguments.batch_prompts] for start in range(0, len(rows), arguments.batch_prompts)]
        parts = Parts(output, options_key(arguments, rows), batches)
        parts.answer_share(arguments)
        if processes.main_rank():
            parts.wait_for_all()
            skipped = len(rows) - sum(1 for _ in parts.lines())
            if skipped == len(rows):
                raise PhaseError(f"none of {skipped} prompts could be answered; the reasons stand above")
            write_atomic(output, map(json_line, parts.lines()))
            seconds = parts.seconds_before + time.monotonic() - processes.STARTED
            write_done(output.parent, SAMPLE, argv, seconds=seconds, artefact=output, skipped=skipped)
            parts.remove()
    return 0


class Parts:
    """Answered batches on disk, one file a process, until all of them are put together.

    Args:
        output: the file that they become.
        key: of the options and prompts that they answer; lines with another one are left aside.
        batches: rows of the anchors file.
    """

    def __init__(self, output: Path, key: str, batches: Sequence[Sequence[Row]]) -> None:
        self.output = output
        self.key = key
        self.batches = batches
        self.rank = int(os.environ.get("RANK", "0"))
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self.progress = ProgressFile(output.parent, phase=SAMPLE, unit="prompts")
        self.seconds_before = 0.0
        self._places: dict[int, tuple[Path, int]] = {}  # where an answered batch stands: file and byte
        self._read: dict[Path, int] = {}

    def answer_share(self, arguments: SampleArguments) -> None:
        """Answers this process's batches that no part file has yet."""
        self.seconds_before = max(self._look().values(), default=0.0)
        if processes.main_rank():
            self.progress.begin(self._done(), sum(map(len, self.batches)))
        share = [number for number in range(self.rank, len(self.batches), self.size) if number not in self._places]
        if not share:
            return
        from openrlhf_dynamicrubric.llm.load import load_model

        model = load_model(arguments.model, dtype=arguments.dtype, batch_tokens=arguments.batch_tokens, judge=False)
        for number in share:
            started = time.monotonic()
            first = number * arguments.batch_prompts
            lines = aio.run(answer_batch(model, self.batches[number], first, arguments))
            line = {"key": self.key, "batch": number, "lines": lines, "seconds": time.monotonic() - started}
            append_lines(self.output.with_name(f"{self.output.name}.part-{self.rank:03d}"), [line])
            self._report()

    def wait_for_all(self) -> None:
        """Every batch is on disk, the other processes' too."""
        while self._places.keys() != set(range(len(self.batches))):
            time.sleep(0.2)  # without end: a process that fails takes this one with it
            self._report()

    def lines(self) -> Iterator[Row]:
        """The response sets of all processes, in the order of the anchors file."""
        for number in range(len(self.batches)):
            path, offset = self._places[number]
            with path.open("rb") as file:
                file.seek(offset)
                yield from json.loads(file.readline())["lines"]

    def remove(self) -> None:
        """The part files are gone."""
        for path in self._paths():
            path.unlink()

    def _look(self) -> dict[Path, float]:
        """Takes in what is new in the part files; the seconds of each."""
        seconds: dict[Path, float] = {}
        for path in self._paths():
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                for line in iter(file.readline, b""):
                    if not line.endswith(b"\n"):
                        break  # being written, or cut by a crash
                    row = json.loads(line)
                    if row["key"] == self.key:
                        self._places[row["batch"]] = (path, self._read.get(path, 0))
                        seconds[path] = seconds.get(path, 0.0) + row["seconds"]
                    self._read[path] = file.tell()
        return seconds

    def _done(self) -> int:
        return sum(len(self.batches[number]) for number in self._places)

    def _report(self) -> None:
        if processes.main_rank():
            self._look()
            self.progress.update(self._done(), sum(map(len, self.batches)))

    def _paths(self) -> list[Path]:
        return sorted(self.output.parent.glob(f"{self.output.name}.part-*"))


async def answer_batch(model: LanguageModel, rows: Sequence[Row], first: int, arguments: SampleArguments) -> list[Row]:
    """The response sets of some neighbouring rows, all their responses sampled at once.

    Args:
        model: the policy.
        rows: of the anchors file.
        first: position of the first of them in the file.
        arguments: how to sample.

    Returns:
        A response set a row; a prompt that the model cannot answer, because it is too long say, is left out and reported.
    """
    answers = await asyncio.gather(*(_responses(model, row, first + offset, arguments) for offset, row in enumerate(rows)))
    lines = []
    for row, responses in zip(rows, answers, strict=True):
        if isinstance(responses, ModelCallError):
            logger.warning("prompt %s is left out: %s", row["id"], responses)
        else:
            lines.append({"id": row["id"], "prompt": row["prompt"], "responses": responses, "anchors": row["anchors"]})
    return lines


async def _responses(model: LanguageModel, row: Row, position: int, arguments: SampleArguments) -> list[str] | ModelCallError:
    prompt = as_prompt(row["prompt"], chat=arguments.chat_prompts)
    calls = [
        model.complete(
            prompt,
            max_tokens=arguments.max_new_tokens,
            temperature=arguments.temperature,
            top_p=arguments.top_p,
            seed=response_seed(arguments.seed, position, row, k),
        )
        for k in range(arguments.num_responses)
    ]
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, ModelCallError):
            return result
        if isinstance(result, BaseException):
            raise result
    return [result.text for result in results if not isinstance(result, BaseException)]


def response_seed(seed: int, position: int, row: Mapping[str, Any], k: int) -> int:
    """A seed of a response's own: the same on every process and after every restart.

    Example:
        >>> row = {"id": "a", "prompt": "Hi"}
        >>> response_seed(0, 0, row, 1) == response_seed(0, 0, row, 1) != response_seed(0, 0, row, 2)
        True
    """
    parts = (seed, position, row["id"], prompts.conversation_text(row["prompt"]), k)
    return int.from_bytes(hashlib.sha256(repr(parts).encode("utf-8", "backslashreplace")).digest()[:4], "big") >> 1


def options_key(arguments: SampleArguments, rows: Sequence[Row]) -> str:
    """Twelve hex digits for options and prompts: what was sampled with others is not mixed in."""
    options = {**dataclasses.asdict(arguments), "output": ""}
    text = json.dumps([options, [[row["id"], row["prompt"], row["anchors"]] for row in rows]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
