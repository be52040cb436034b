"""What a report knows of a run: a line of numbers for each group, sums, and where the texts stand."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from openrlhf_dynamicrubric.errors import DataError
from openrlhf_dynamicrubric.phases import SAMPLE
from openrlhf_dynamicrubric.types import Usage


class RecordsChangedError(DataError):
    """A record is no longer where it stood: a resumed run took it away."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where one record stands: file, line from 1, byte; and a checksum of its line."""

    path: Path
    line: int
    offset: int
    checksum: int

    def read(self) -> dict[str, Any]:
        """The record itself.

        Raises:
            RecordsChangedError: another one stands there now, or none.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                line = file.readline()
        except FileNotFoundError:
            line = b""
        if zlib.crc32(line) != self.checksum:
            raise RecordsChangedError(f"{self.path.name} changes while it is read: a run rewrites its records; try again")
        return json.loads(line)


@dataclass(slots=True)
class Phase:
    """One command of a run, or a folder of records by itself (round 0)."""

    folder: Path
    round: int
    name: str
    done: dict[str, Any] | None = None
    progress: dict[str, Any] = field(default_factory=dict)
    started: float | None = None
    ended: float | None = None
    log_tail: str = ""
    metrics: list[tuple[int, dict[str, float]]] = field(default_factory=list)

    @property
    def seconds(self) -> float | None:
        """How long it took, as it says itself; else from its first sign of life to its last."""
        if self.done and isinstance(self.done.get("seconds"), int | float):
            return float(self.done["seconds"])
        started = self.progress.get("started", self.started)
        return self.ended - started if started is not None and self.ended is not None else None


@dataclass(frozen=True, slots=True)
class Group:
    """The numbers of one response set that the policy was scored on; NaN where there are none."""

    phase: Phase
    source: Source
    step: int
    id: str
    unscorable: str | None
    gap: float
    disc: float
    mean_score: float
    items: int
    saturated: int
    rejected: int
    attempts: int
    chars: float
    size: int
    evaluation: bool
    anchor: float = np.nan
    accuracy: float = np.nan


@dataclass(frozen=True, slots=True)
class Sampled:
    """The numbers of one rubric that the generator was trained on; NaN where it has none."""

    phase: Phase
    source: Source
    step: int
    id: str
    invalid: bool
    unscorable: bool
    first: bool
    evaluation: bool
    disc: float
    anchor: float
    accuracy: float
    advantage: float


@dataclass(slots=True)
class Item:
    """One criterion over all rubrics that hold it."""

    criterion: str
    group: Group
    count: int = 0
    weight: int = 0
    yes: float = 0.0
    variance: float = 0.0


@dataclass(slots=True)
class Reason:
    """Why something failed: the first wording, how often, and the first group."""

    kind: str
    text: str
    count: int = 0
    group: Group | None = None


@dataclass(slots=True)
class RunData:
    """Everything a report says, but the texts."""

    folder: Path
    run: dict[str, Any] = field(default_factory=dict)
    phases: list[Phase] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    sampled: list[Sampled] = field(default_factory=list)
    items: dict[str, Item] = field(default_factory=dict)
    yes_shares: Counter[str] = field(default_factory=Counter)
    unscorable: dict[tuple[str, str], Reason] = field(default_factory=dict)
    rejected: dict[str, Reason] = field(default_factory=dict)
    usage: dict[str, Usage] = field(default_factory=dict)
    prompts: set[str] = field(default_factory=set)
    judges: dict[str, set[str]] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)
    _response_sets: dict[Path, dict[str, Source]] = field(default_factory=dict)

    def response_set(self, phase: Phase, name: str) -> dict[str, Any]:
        """The response set of that id that the generator was trained on; empty where the run's folder has none."""
        path = phase.folder.parent / SAMPLE / "responses.jsonl"
        if path not in self._response_sets:
            rows = rows_of(path, self.damaged) if phase.round and path.is_file() else ()
            self._response_sets[path] = {str(row.get("id")): source for source, row in rows}
        source = self._response_sets[path].get(name)
        return source.read() if source else {}


def rows_of(path: Path, damaged: list[str]) -> Iterator[tuple[Source, dict[str, Any]]]:
    """The records of one file with their places; what is no record is named in `damaged`."""
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            source = Source(path, number, offset, zlib.crc32(line))
            offset += len(line)
            if not line.endswith(b"\n"):
                continue  # is being written, or a crash cut it
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if isinstance(row, dict):
                yield source, row
            else:
                damaged.append(f"{path.name}, line {number}: not a JSON object")
