"""Line charts as inline SVG: coloured by the page's own style, readable without a mouse. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup, escape

WIDTH, HEIGHT = 360, 170
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 18, 22
MOST_POINTS = 120


@dataclass(frozen=True, slots=True)
class Line:
    """One quantity over steps: its name and (step, value) pairs in order of step."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Chart:
    """What one chart shows.

    Args:
        title: the quantity.
        note: what it means.
        lines: at most three.
        bounds: (lowest, highest) value that the axis always shows; the data may widen it.
        level: a value to compare with, drawn dashed, and its name.
        borders: (step, label) of each round.
        better: "higher", "lower", or "" where neither is.
        show: writes a value; without it `number` does.
    """

    title: str
    note: str
    lines: Sequence[Line]
    bounds: tuple[float, float] | None = None
    level: tuple[float, str] | None = None
    borders: Sequence[tuple[float, str]] = ()
    better: str = ""
    show: Callable[[float], str] | None = None


def ticks(low: float, high: float, *, most: int = 5) -> list[float]:
    """Round numbers from at or below `low` to at or above `high`, evenly spaced by 1, 2 or 5 times a power of ten.

    Example:
        >>> ticks(0.0, 0.23)
        [0.0, 0.1, 0.2, 0.3]
    """
    span = high - low
    if span < 1e-6 * max(abs(low), abs(high)) or span == 0:  # labels of four digits could not tell the ticks apart
        span = abs(high) or 1.0
    step = 10.0 ** math.floor(math.log10(span / most))
    step *= next(factor for factor in (1, 2, 5, 10, 20) if span / (step * factor) <= most - 1)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, max(last, first + 1) + 1)]


def number(value: float) -> str:
    """A number as an axis shows it.

    Example:
        >>> number(0.25), number(1200.0), number(-3.5), number(25_000.0)
        ('0.25', '1200', '−3.5', '25k')
    """
    shown = f"{value / 1000:.4g}k" if 10_000 <= abs(value) < 1e7 else f"{value:.4g}"
    return shown.replace("-", "−")


def thin(points: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """At most `most` points: means of neighbouring ones.

    Example:
        >>> thin([(0, 1.0), (1, 3.0), (2, 5.0), (3, 7.0)], 2)
        [(0.5, 2.0), (2.5, 6.0)]
    """
    if len(points) <= most:
        return list(points)
    edges = [round(index * len(points) / most) for index in range(most + 1)]
    parts = [points[first:last] for first, last in pairwise(edges)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


def draw(chart: Chart) -> Markup:
    """The chart as an SVG element; colours come from the classes l0, l1, l2 and the page's style."""
    xs = [x for line in chart.lines for x, _ in line.points]
    ys = (
        [y for line in chart.lines for _, y in line.points]
        + [*(chart.bounds or ())]
        + ([chart.level[0]] if chart.level else [])
    )
    marks = ticks(min(ys), max(ys))
    scale = _Scale(min(xs), max(xs), marks[0], marks[-1])
    show = chart.show or number
    shapes = [*_grid(scale, marks, show), *_steps(scale), *_borders(scale, chart.borders)]
    if chart.level:
        y = scale.y(chart.level[0])
        shapes.append(f'<path class="level" d="M{LEFT} {y}H{WIDTH - RIGHT}"><title>{escape(chart.level[1])}</title></path>')
    for index, line in enumerate(chart.lines):
        shapes.extend(_line(scale, index, line, show))
    label = escape(f"{chart.title}: " + "; ".join(_summary(line, show) for line in chart.lines))
    return Markup(f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(shapes)}</svg>')


def _summary(line: Line, show: Callable[[float], str]) -> str:
    (first_x, first_y), (last_x, last_y) = line.points[0], line.points[-1]
    return f"{line.name} {show(first_y)} at step {first_x:g}, {show(last_y)} at step {last_x:g}"


@dataclass(frozen=True, slots=True)
class _Scale:
    first: float
    last: float
    low: float
    high: float

    def x(self, value: float) -> str:
        share = (value - self.first) / (self.last - self.first) if self.last > self.first else 0.5
        return f"{LEFT + share * (WIDTH - LEFT - RIGHT):.1f}"

    def y(self, value: float) -> str:
        share = (value - self.low) / (self.high - self.low)
        return f"{HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM):.1f}"


def _grid(scale: _Scale, marks: Sequence[float], show: Callable[[float], str]) -> list[str]:
    shapes = []
    for mark in marks:
        y = scale.y(mark)
        shapes.append(f'<path class="grid" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>')
        shapes.append(f'<text class="tick end" x="{LEFT - 6}" y="{float(y) + 3.5:.1f}">{show(mark)}</text>')
    return shapes


def _steps(scale: _Scale) -> list[str]:
    inside = [x for x in ticks(scale.first, scale.last, most=6) if scale.first <= x <= scale.last and x == int(x)]
    y = HEIGHT - BOTTOM + 14
    label = f'<text class="tick end" x="{LEFT - 6}" y="{y}">step</text>'
    return [label, *(f'<text class="tick mid" x="{scale.x(x)}" y="{y}">{number(x)}</text>' for x in inside)]


def _borders(scale: _Scale, borders: Sequence[tuple[float, str]]) -> list[str]:
    shapes = []
    for step, label in borders:
        inside = min(max(step, scale.first), scale.last)
        if scale.first < step <= scale.last:
            shapes.append(f'<path class="border" d="M{scale.x(step)} {TOP - 14}V{HEIGHT - BOTTOM}"/>')
        shapes.append(f'<text class="round" x="{float(scale.x(inside)) + 3:.1f}" y="{TOP - 6}">{escape(label)}</text>')
    return shapes


def _line(scale: _Scale, index: int, line: Line, show: Callable[[float], str]) -> list[str]:
    thinned = thin(line.points)
    path = "L".join(f"{scale.x(x)} {scale.y(y)}" for x, y in thinned)
    shapes = [f'<path class="line l{index}" d="M{path}"/>']
    radius = 2.5 if len(thinned) <= 40 else 1.6
    for x, y in thinned:
        title = escape(f"step {x:g}, {line.name}: {show(y)}")
        shapes.append(
            f'<circle class="dot l{index}" cx="{scale.x(x)}" cy="{scale.y(y)}" r="{radius}"><title>{title}</title></circle>'
        )
    return shapes
