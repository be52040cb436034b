"""From a run's numbers to the rows and curves that a report shows. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openrlhf_dynamicrubric.phases import TRAIN_GENERATOR, TRAIN_POLICY
from openrlhf_dynamicrubric.report.data import Group, Item, Phase, RunData, Sampled
from openrlhf_dynamicrubric.report.plots import Chart, Line, number

LENGTH, REWARD, SECONDS, JUDGING = "completions/mean_length", "reward", "step_time", "dynamicrubric/seconds"


def mean(values: Iterable[float]) -> float:
    """The mean of what is there; NaN where nothing is."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def policy_measures(groups: Sequence[Group]) -> dict[str, float]:
    """What a few groups say about the policy's signal; NaN where they say nothing."""
    scored = [group for group in groups if group.unscorable is None]
    items, attempts = sum(group.items for group in scored), sum(group.attempts for group in groups)
    return {
        "gap": mean(group.gap for group in scored),
        "flat": mean(float(group.gap == 0) for group in scored),
        "saturated": sum(group.saturated for group in scored) / items if items else math.nan,
        "disc": mean(group.disc for group in scored),
        "items": mean(group.items for group in scored),
        "invalid": sum(group.rejected for group in groups) / attempts if attempts else math.nan,
        "unscorable": mean(float(group.unscorable is not None) for group in groups),
        "chars": mean(group.chars for group in groups),
        "anchor": mean(group.anchor for group in scored),
        "accuracy": mean(group.accuracy for group in scored),
    }


def generator_measures(sampled: Sequence[Sampled]) -> dict[str, float]:
    """What a few sampled rubrics say about the generator: mean rewards, and the accuracy of those that could be judged."""
    return {
        "disc": mean(rubric.disc for rubric in sampled),
        "anchor": mean(rubric.anchor for rubric in sampled),
        "accuracy": mean(rubric.accuracy for rubric in sampled),
        "invalid": mean(float(rubric.invalid) for rubric in sampled),
        "unscorable": mean(float(rubric.unscorable) for rubric in sampled),
    }


def by_step(rows: Iterable[Any]) -> dict[int, list[Any]]:
    """Groups, or rubrics, of one phase by step, in order."""
    steps: defaultdict[int, list[Any]] = defaultdict(list)
    for row in rows:
        steps[row.step].append(row)
    return dict(sorted(steps.items()))


@dataclass(frozen=True, slots=True)
class Curve:
    """One measure of one phase at each of its steps."""

    steps: Mapping[int, float]

    @property
    def mean(self) -> float:
        """Mean over the steps."""
        return mean(self.steps.values())

    @property
    def first(self) -> float:
        """Mean over the first quarter of the steps, at least one."""
        return mean(list(self.steps.values())[: self._edge])

    @property
    def last(self) -> float:
        """Mean over the last quarter of the steps, at least one."""
        return mean(list(self.steps.values())[-self._edge :])

    @property
    def _edge(self) -> int:
        return max(1, len(self.steps) // 4)


def phase_curves(data: RunData, phase: Phase) -> dict[str, Curve]:
    """All measures of one phase by step: from its groups or rubrics, and from the trainer's own log (its names)."""
    groups = by_step(group for group in data.groups if group.phase is phase and not group.evaluation)
    sampled = by_step(rubric for rubric in data.sampled if rubric.phase is phase and not rubric.evaluation)
    rows = {step: policy_measures(members) for step, members in groups.items()}
    if not rows:
        rows = {step: generator_measures(members) for step, members in sampled.items()}
    # A trainer logs a step after it has counted it: what it logs at 1 belongs to the records of step 0.
    logged = [(max(step - 1, 0), name, value) for step, log in phase.metrics for name, value in log.items()]
    curves: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for step, name, value in [(step, name, value) for step, row in rows.items() for name, value in row.items()] + logged:
        if not math.isnan(value):
            curves[name][step] = value
    return {name: Curve(dict(sorted(steps.items()))) for name, steps in curves.items()}


def steps_done(data: RunData, phase: Phase) -> int:
    """How many steps left something behind."""
    steps = [step for step, _ in phase.metrics]
    steps += [row.step + 1 for rows in (data.groups, data.sampled) for row in rows if row.phase is phase]
    return max(steps, default=0)


def percent(value: float) -> str:
    """A share as text.

    Example:
        >>> percent(0.125), percent(1.0), percent(0.0), percent(float("nan"))
        ('12.5\u202f%', '100\u202f%', '0\u202f%', '–')
    """
    return "–" if math.isnan(value) else f"{100 * value:.1f}".removesuffix(".0") + "\u202f%"


def decimal(value: float) -> str:
    """A figure as text, three digits after the point."""
    return "–" if math.isnan(value) else f"{value:.3f}".replace("-", "−")


def probability(value: float, yes: bool, threshold: float = 0.5) -> str:
    """P(yes) as text, with as many digits (two to six) as it takes to stand on its verdict's side of the threshold.

    Example:
        >>> probability(0.497, False), probability(0.9, True), probability(0.49996, False)
        ('0.497', '0.90', '0.49996')
    """
    if math.isnan(value):
        return "–"
    if (value >= threshold) != yes:  # records round to six digits; or they were judged by another threshold
        return f"<{value:.6g}" if not yes and value == threshold else f"{value:.6g}"
    texts = (f"{value:.{digits}f}" for digits in range(2, 7))
    return next((text for text in texts if (float(text) >= threshold) == yes), f"{value:.6g}")


def duration(seconds: float | None) -> str:
    """A time as text.

    Example:
        >>> duration(3.25), duration(75.0), duration(7_320.0)
        ('3.2 s', '1 min 15 s', '2 h 02 min')
    """
    if seconds is None or math.isnan(seconds):
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"


@dataclass(frozen=True, slots=True)
class Measure:
    """One row of the table of rounds, and one chart."""

    key: str
    title: str
    note: str
    better: str
    show: Callable[[float], str] = decimal
    bounds: tuple[float, float] | None = None
    level: tuple[float, str] | None = None
    beside: tuple[tuple[str, str], ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One measure of one phase in words; `first` and `last` are empty where there is one step only."""

    mean: str
    first: str = ""
    last: str = ""

    def __str__(self) -> str:
        return f"{self.mean} ({self.first} → {self.last})" if self.first else self.mean


CELLS = "mean over the steps (over their first quarter → over their last quarter)"
"""Says what a cell's numbers are."""


def cell(measure: Measure, curves: Mapping[str, Curve]) -> Cell:
    """What the page and the terminal say about one measure of one phase: the same numbers, rounded alike.

    Args:
        measure: which, and how it is written.
        curves: of the phase, see `phase_curves`.

    Returns:
        The mean over the steps, and over the first and last quarter of them; a dash where the phase says nothing.

    Example:
        >>> str(cell(UNSCORABLE, {"unscorable": Curve({0: 0.0, 1: 0.25})})), str(cell(UNSCORABLE, {}))
        ('12.5\u202f% (0\u202f% → 25\u202f%)', '–')
    """
    curve = curves.get(measure.key)
    if curve is None:
        return Cell("–")
    if len(curve.steps) == 1:
        return Cell(measure.show(curve.mean))
    return Cell(measure.show(curve.mean), measure.show(curve.first), measure.show(curve.last))


UNSCORABLE = Measure("unscorable", "Unscorable", "groups without scores; they train nothing", "lower", percent, (0, 0.1))
INVALID = Measure(
    "invalid",
    "Invalid rubrics",
    "share of what the generator wrote that is no valid rubric",
    "lower",
    percent,
    (0, 0.1),
    beside=(("unscorable", "unscorable"),),
)
ACCURACY = Measure(
    "accuracy", "Anchor accuracy", "anchor pairs in their order, ties half", "higher", percent, (0.4, 1), (0.5, "chance")
)
ACCURACY = Measure(
    "accuracy", "Anchor accuracy", "anchor pairs in their order; chance is 50 %", "higher", percent, (0.4, 1), (0.5, "chance")
)
PACE = Measure(SECONDS, "Seconds a step", "", "lower", number, (0, 1), beside=((JUDGING, "judging"),), name="whole step")
POLICY_MEASURES = (
    Measure("gap", "Score gap", "mean |Eᵢ − Eⱼ| inside a group: the signal that the policy gets", "higher", bounds=(0, 0.1)),
    Measure("flat", "Zero-variance groups", "share of scored groups in which all scores are equal", "lower", percent, (0, 0.1)),
    Measure("saturated", "Saturated items", "share of items that every response meets, or none", "lower", percent, (0, 0.1)),
    Measure("disc", "R_disc", "weighted variance of the verdicts, at most 0.25", "higher", bounds=(0, 0.25)),
    Measure("anchor", "R_anchor", "do scores keep the anchors' order; 0 is the limit", "higher"),
    ACCURACY,
    INVALID,
    UNSCORABLE,
    Measure(REWARD, "Reward", "mean score; comparable inside a group only, so do not read it as progress", "", bounds=(0, 1)),
    Measure(LENGTH, "Completion length", "tokens of a response", "", number, (0, 1)),
    Measure("chars", "Response length", "characters of a response", "", number, (0, 1)),
    PACE,
)
GENERATOR_MEASURES = (
    Measure(
        "disc",
        "R_disc",
        "weighted variance of the verdicts, at most 0.25; an invalid rubric earns 0",
        "higher",
        bounds=(0, 0.25),
    ),
    Measure(
        "anchor", "R_anchor", "do scores keep the anchors' order; 0 is the limit; an invalid rubric earns the floor", "higher"
    ),
    ACCURACY,
    INVALID,
    UNSCORABLE,
    Measure(LENGTH, "Rubric length", "tokens of a rubric", "", number, (0, 1)),
    PACE,
)


def kinds(data: RunData) -> list[tuple[str, tuple[Measure, ...], list[Phase]]]:
    """The two trainings, or a folder of records, each with its measures and its phases in order of rounds."""
    alone = [phase for phase in data.phases if not phase.round]
    if alone:
        generator_only = bool(data.sampled) and not data.groups
        return [("Records", GENERATOR_MEASURES if generator_only else POLICY_MEASURES, alone)]
    rows = (("Generator training", GENERATOR_MEASURES, TRAIN_GENERATOR), ("Policy training", POLICY_MEASURES, TRAIN_POLICY))
    return [(title, measures, [p for p in data.phases if p.name == kind]) for title, measures, kind in rows]


@dataclass(frozen=True, slots=True)
class Track:
    """Phases of one kind laid end to end: curves over all rounds, with the step at which each round begins."""

    phases: Sequence[Phase]
    curves: Sequence[Mapping[str, Curve]]
    starts: Sequence[int]

    @property
    def borders(self) -> list[tuple[float, str]]:
        """(step, label) of each round; a folder of records has none."""
        return [(float(s), f"round {p.round}") for s, p in zip(self.starts, self.phases, strict=True) if p.round]

    def points(self, name: str) -> list[tuple[float, float]]:
        """One measure at each step counted through."""
        pairs = zip(self.starts, self.curves, strict=True)
        return [(float(start + step), value) for start, c in pairs if name in c for step, value in c[name].steps.items()]


def track(data: RunData, phases: Sequence[Phase]) -> Track:
    """Phases of one kind, in order of their rounds, laid end to end."""
    starts = [sum(steps_done(data, earlier) for earlier in phases[:index]) for index in range(len(phases))]
    return Track(phases, [phase_curves(data, phase) for phase in phases], starts)


def charts(line: Track, measures: Sequence[Measure]) -> tuple[list[Chart], list[Chart], list[tuple[str, str]]]:
    """A chart for each measure and for each further number in the trainer's log, and those numbers that never change.

    What has fewer than two points is left out.
    """
    has = lambda name: len(line.points(name)) > 1  # noqa: E731 - one line, used thrice
    shown = [m for m in measures if m is not UNSCORABLE and has(m.key) and not (m.key == "chars" and has(LENGTH))]
    used = {m.key for m in measures} | {name for m in measures for name, _ in m.beside} | {*policy_measures([])}
    other = {name: line.points(name) for name in sorted({name for c in line.curves for name in c} - used) if has(name)}
    constant = {name: points[0][1] for name, points in other.items() if len({y for _, y in points}) == 1}
    moving = [Chart(name, "", [Line(name, other[name])], borders=line.borders) for name in other if name not in constant]
    return [_chart(measure, line) for measure in shown], moving, [(name, number(y)) for name, y in constant.items()]


def _chart(measure: Measure, line: Track) -> Chart:
    lines = [Line(measure.name or measure.title.lower(), line.points(measure.key))]
    lines += [Line(name, points) for key, name in measure.beside if len(points := line.points(key)) > 1]
    show = percent if measure.show is percent else None
    return Chart(measure.title, measure.note, lines, measure.bounds, measure.level, line.borders, measure.better, show)


def ranked_items(items: Iterable[Item], most: int) -> tuple[list[Item], list[Item]]:
    """The most and the least discriminating criteria: by mean variance of their verdicts, then by how often they occur."""
    items = list(items)
    most = min(most, (len(items) + 1) // 2)
    best = sorted(
        (item for item in items if item.variance > 0),
        key=lambda item: (-item.variance / item.count, -item.count, -item.weight / item.count),
    )
    worst = sorted(items, key=lambda item: (item.variance / item.count, -item.count, -item.weight / item.count))
    chosen = {id(item) for item in best[:most]}
    return best[:most], [item for item in worst if id(item) not in chosen][:most]
