"""What a run shows while it works: a bar with the times left, plain lines where there is no terminal, a table at the end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openrlhf_dynamicrubric.phases import TRAIN_GENERATOR, TRAIN_POLICY, Phase, read_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.table import Table

PLAIN_SECONDS = 15.0
"""Longest silence where there is no terminal, in seconds."""


class Watch:
    """The progress of one phase on a console.

    Args:
        console: where to show it.
        label: the phase, as `round 1/2 sample`.
        kind: of the phase.
        later: kinds of the phases that follow.
        spent: seconds that complete phases took, by kind.
    """

    def __init__(
        self,
        console: Console,
        label: str,
        *,
        kind: str = "",
        later: Sequence[str] = (),
        spent: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        self.console = console
        self.label = label
        self.kind = kind
        self.later = later
        self.spent = spent or {}
        self.started = time.monotonic()
        self.said = self.started
        self._bar: tuple[Progress, TaskID] | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """A live bar on a terminal; elsewhere nothing, and `update` writes lines."""
        if not self.console.is_terminal:
            yield
            return
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[times]}", markup=False, style="dim"),
        )
        with Progress(*columns, console=self.console, transient=True) as progress:
            self._bar = (progress, progress.add_task(self.label, total=None, times="starting"))
            yield
        self._bar = None

    def update(self, progress: Mapping[str, Any]) -> None:
        """Shows what a phase's progress file says now."""
        step, total = progress.get("step"), progress.get("total")
        elapsed = time.monotonic() - self.started
        left = seconds_left(progress, now=time.time())
        if left is None and self.spent.get(self.kind):
            left = max(0.0, _mean_of(self.spent[self.kind]) - elapsed)
        whole = None if left is None else run_seconds_left(left, elapsed, self.later, self.spent)
        counted = f"{step}/{total} {progress.get('unit', 'steps')}" if total else "starting"
        times = f"{counted} · {clock(elapsed)}"
        if left is not None and whole is not None:
            times += f" · phase ~{clock(left)} left · run ~{clock(whole)} left"
        if self._bar:
            bar, task = self._bar
            bar.update(task, completed=step or 0, total=total, times=times)
        elif time.monotonic() - self.said >= PLAIN_SECONDS:
            self.said = time.monotonic()
            self.console.print(f"  {self.label}: {times}", markup=False, highlight=False, soft_wrap=True)


def seconds_left(progress: Mapping[str, Any], *, now: float) -> float | None:
    """Seconds until a phase ends if its steps go on as they went; None before its first step.

    Example:
        >>> seconds_left({"step": 6, "first": 4, "total": 8, "started": 100.0, "updated": 110.0}, now=112.0)
        8.0
    """
    step, total, first = progress.get("step"), progress.get("total"), progress.get("first", 0)
    if not total or step is None or step <= first:
        return None
    per_step = (progress["updated"] - progress["started"]) / (step - first)
    return max(0.0, per_step * (total - step) - (now - progress["updated"]))


def run_seconds_left(left: float, elapsed: float, later: Sequence[str], spent: Mapping[str, Sequence[float]]) -> float:
    """Seconds until a run ends: a phase of a kind that has run counts as its mean, any other as the mean of all.

    Args:
        left: of this phase.
        elapsed: of this phase.
        later: kinds of the phases that follow.
        spent: seconds that complete phases took, by kind.

    Example:
        >>> run_seconds_left(5.0, 15.0, ["sample", "train-policy"], {"sample": [10.0]})
        30.0
    """
    unknown = _mean_of([*(seconds for kind in spent.values() for seconds in kind), left + elapsed])
    return left + sum(_mean_of(spent[kind]) if spent.get(kind) else unknown for kind in later)


def clock(seconds: float) -> str:
    """A time as minutes and seconds, with hours where there are any.

    Example:
        >>> clock(75), clock(3675)
        ('1:15', '1:01:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def summary(phases: Iterable[Phase]) -> list[dict[str, str]]:
    """One row a round of what its records say, in the numbers of the report's page; a dash where they say nothing."""
    from openrlhf_dynamicrubric.report import tables
    from openrlhf_dynamicrubric.report.read import read_run

    rounds: dict[int, dict[str, Phase]] = {}
    for phase in phases:
        rounds.setdefault(phase.round, {})[phase.kind] = phase
    folders = {phase.folder.parent.parent for kinds in rounds.values() for phase in kinds.values() if phase.folder.is_dir()}
    curves: dict[tuple[int, str], Mapping[str, tables.Curve]] = {}
    for data in map(read_run, folders):
        curves |= {(phase.round, phase.name): tables.phase_curves(data, phase) for phase in data.phases}
    rows = []
    for number, kinds in rounds.items():
        generator, policy = curves.get((number, TRAIN_GENERATOR), {}), curves.get((number, TRAIN_POLICY), {})
        if not policy and not generator:
            continue
        seconds = [read_json(phase.folder / "done.json").get("seconds") for phase in kinds.values()]
        row = {"round": str(number)}
        for measures, of_phase, keys in (
            (tables.POLICY_MEASURES, policy, ("gap", "flat")),
            (tables.GENERATOR_MEASURES, generator, ("disc", "anchor", "accuracy")),
        ):
            row |= {measure.title: str(tables.cell(measure, of_phase)) for measure in measures if measure.key in keys}
        for measure in (tables.INVALID, tables.UNSCORABLE):
            row[measure.title] = f"{tables.cell(measure, generator).mean} / {tables.cell(measure, policy).mean}"
        rows.append({**row, "Time": clock(sum(s for s in seconds if s)) if all(seconds) else "–"})
    return rows


def legend() -> str:
    """Explains the cells of `summary`."""
    from openrlhf_dynamicrubric.report.tables import CELLS

    return f"{CELLS}; a / b: generator training / policy training; R_disc and anchors: generator training"


def summary_tables(phases: Iterable[Phase], *, width: int) -> Iterator[Table]:
    """`summary` as tables with a column for each round, as many beside each other as fit into `width` characters."""
    from rich.table import Table

    rows = summary(phases)
    titles = max((len(name) for row in rows for name in row), default=0)
    cells = max((len(text) for row in rows for text in row.values()), default=0)
    at_once = max(1, (width - titles - 4) // (cells + 3))
    for start in range(0, len(rows), at_once):
        some = rows[start : start + at_once]
        table = Table()
        table.add_column("round")
        for row in some:
            table.add_column(row["round"], justify="right", no_wrap=True)
        for name in list(some[0])[1:]:
            table.add_row(name, *(row[name] for row in some))
        yield table


def tail(log: Path, *, lines: int = 12) -> list[str]:
    """The last lines of a log that are not blank."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 16_384))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.replace("\r", "\n").splitlines() if line.strip()][-lines:]


def _mean_of(values: Sequence[float]) -> float:
    return sum(values) / len(values)
