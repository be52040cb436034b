"""Line charts as inline SVG: drawn by matplotlib, coloured by the page's own style, readable without a mouse."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from markupsafe import Markup

from openrlhf_dynamicrubric.display import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 360, 170  # points, each a pixel where the page shows a chart at its natural size
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 18, 22
LABEL_WIDTH = 44
MOST_POINTS, MOST_DOTS = 120, 40
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dynamicrubric",
    "font.size": 10,
    "axes.autolimit_mode": "round_numbers",
    "axes.formatter.limits": (-3, 5),  # longer labels would leave the chart
}
CLASSES = ("grid", "border", "level", "line", "dot")
NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


Points = Sequence[tuple[float, float]]
_LONG, _ANCHOR = re.compile(r"(\.\d\d)\d+"), re.compile(r"(text-anchor): (\w+)")


@dataclass(frozen=True, slots=True)
class Line:
    """One quantity over steps: its name and (step, value) pairs in order of step."""

    name: str
    points: Points


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
        show: writes a value; without it `number` does, and matplotlib on the axis.
    """

    title: str
    note: str
    lines: Sequence[Line]
    bounds: tuple[float, float] | None = None
    level: tuple[float, str] | None = None
    borders: Sequence[tuple[float, str]] = ()
    better: str = ""
    show: Callable[[float], str] | None = None


def number(value: float) -> str:
    """A number as text, four digits of it.

    Example:
        >>> number(0.25), number(1200.0), number(-3.5), number(25_000.0)
        ('0.25', '1200', '−3.5', '25k')
    """
    shown = f"{value / 1000:.4g}k" if 10_000 <= abs(value) < 1e7 else f"{value:.4g}"
    return shown.replace("-", "−")


def thin(points: Points, most: int = MOST_POINTS) -> list[tuple[float, float]]:
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


def draw(chart: Chart, *, name: str = "chart") -> Markup:
    """The chart as an SVG element that leaves its colours to the page: classes grid, border, level, and line l0, dot l0 ...

    Where dots would touch each other they have the class crowd too: the page shows them when they are pointed at.

    Args:
        chart: what to draw; each line has at least one point, and all points are finite.
        name: what the element's ids begin with; charts on one page need different ones.

    Returns:
        The same text for the same chart. Its accessible name says how each line begins and ends; each dot says its value.
    """
    import matplotlib.style
    from matplotlib.figure import Figure

    dots = [thin(line.points) for line in chart.lines]
    svg = io.StringIO()
    with matplotlib.style.context(STYLE, after_reset=True):  # whatever a matplotlibrc says
        figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), frameon=False)
        box = (LEFT / WIDTH, BOTTOM / HEIGHT, (WIDTH - LEFT - RIGHT) / WIDTH, (HEIGHT - TOP - BOTTOM) / HEIGHT)
        axes = figure.add_axes(box, frame_on=False)
        _plot(axes, dots, chart.level)
        _set_limits(axes, chart)
        _lay_axes(axes, chart.show)
        _mark_borders(axes, chart.borders)
        for artist in figure.findobj():
            artist.set_clip_on(False)  # a dot on the edge stays whole
        figure.savefig(svg, format="svg", metadata=NO_METADATA)
    root = _for_a_page(ElementTree.fromstring(svg.getvalue()), name)
    root.attrib = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "role": "img", "aria-label": _summary(chart)}
    _title_dots(root, chart, dots)
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _plot(axes: Axes, dots: Sequence[Points], level: tuple[float, str] | None) -> None:
    if level:
        axes.axhline(level[0], gid="level")
        axes.annotate(level[1], (1, level[0]), (0, 3), ("axes fraction", "data"), "offset points", ha="right")
    for index, points in enumerate(dots):
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, gid=f"line l{index}")
        crowd = " crowd" if len(xs) > MOST_DOTS else ""
        axes.plot(xs, ys, "o", markersize=8 if crowd else 5, markeredgewidth=0, gid=f"dot l{index}{crowd}")


def _set_limits(axes: Axes, chart: Chart) -> None:
    from matplotlib.ticker import MaxNLocator

    xs = [x for line in chart.lines for x, _ in line.points]
    ys = [y for line in chart.lines for _, y in line.points] + [*(chart.bounds or ())]
    if min(ys) == max(ys):
        ys.append(0.0 if ys[0] else 1.0)  # a flat line stands at its height above zero
    axes.update_datalim([(xs[0], min(ys)), (xs[0], max(ys))])
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.margins(0, tight=False)  # limits are ticks
    axes.autoscale_view()
    axes.set_xlim(min(xs), max(max(xs), min(xs) + 1))


def _lay_axes(axes: Axes, show: Callable[[float], str] | None) -> None:
    from matplotlib.ticker import FuncFormatter

    if show:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: show(y)))
    axes.ticklabel_format(axis="x", style="plain", useOffset=False)
    axes.tick_params(left=False, bottom=False)
    axes.yaxis.get_offset_text().set_x(-LEFT / (WIDTH - LEFT - RIGHT))
    axes.yaxis.OFFSETTEXTPAD = 8  # above the highest label, not on it
    axes.grid(axis="y")
    for line in axes.get_ygridlines():
        line.set_gid("grid")
    axes.annotate("step", (0, 0), (-7, -7), "axes fraction", "offset points", ha="right", va="top")


def _mark_borders(axes: Axes, borders: Sequence[tuple[float, str]]) -> None:
    first, last = axes.get_xlim()
    width = LABEL_WIDTH / (WIDTH - LEFT - RIGHT) * (last - first)
    free = first
    for step, label in borders:
        if first < step <= last:
            axes.axvline(step, ymax=1.1, gid="border")
        at = max(step, first)
        if free <= at <= last - width:  # a label that would run into the one before, or off the chart, is left out
            axes.annotate(label, (at, 1), (3, 6), ("data", "axes fraction"), "offset points", parse_math=False)
            free = at + width


def _for_a_page(root: ElementTree.Element, name: str) -> ElementTree.Element:
    """Takes away what a page does not need or what would clash in it: namespaces, style, ids."""
    for defs in root.findall("{*}defs"):
        if defs.find("{*}style") is not None:
            root.remove(defs)  # it would hold for the whole page
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
        label = attributes.get("id", "")
        element.attrib = {key: _LONG.sub(r"\1", attributes[key]) for key in ("d", "x", "y") if key in attributes}
        if element.tag == "text":
            element.attrib.update(_ANCHOR.findall(attributes["style"]))
        else:
            element.text = None
        if element.tag == "use":
            element.set("href", attributes["href"].replace("#", f"#{name}-"))
        elif element.tag == "path" and label:
            element.set("id", f"{name}-{label}")
        elif label.partition(" ")[0] in CLASSES:
            element.set("class", label)
        element.tail = None
    return root


def _title_dots(root: ElementTree.Element, chart: Chart, dots: Sequence[Points]) -> None:
    groups = [group for group in root.iter("g") if group.get("class", "").startswith("dot")]
    for line, group, points in zip(chart.lines, groups, dots, strict=True):
        for dot, (x, y) in zip(group.iter("use"), points, strict=True):
            title = ElementTree.SubElement(dot, "title")
            title.text = visible(f"step {x:g}, {line.name}: {(chart.show or number)(y)}")


def _summary(chart: Chart) -> str:
    show = chart.show or number
    ends = [(line.name, *line.points[0], *line.points[-1]) for line in chart.lines]
    parts = [f"{name} {show(y)} at step {x:g}, {show(last_y)} at step {last_x:g}" for name, x, y, last_x, last_y in ends]
    level = [f"{chart.level[1]} is {show(chart.level[0])}"] if chart.level else []
    return visible(f"{chart.title}: " + "; ".join(parts + level))
