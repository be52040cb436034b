"""The picture of a run: one HTML page from what lies on disk, without network or scripts of others."""

from __future__ import annotations

import argparse
import base64
import hashlib
import itertools
import random
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from openrlhf_dynamicrubric.display import visible
from openrlhf_dynamicrubric.errors import DataError
from openrlhf_dynamicrubric.files import write_atomic
from openrlhf_dynamicrubric.report import plots, tables, views
from openrlhf_dynamicrubric.report.data import Group, RecordsChangedError, RunData, Sampled
from openrlhf_dynamicrubric.report.read import read_run

if TYPE_CHECKING:
    from jinja2 import Environment

T = TypeVar("T")

MOST_SETS, SETS_BYTES = 80, 3_000_000
MOST_ITEMS = 12
MOST_RUBRIC_GROUPS, RUBRIC_GROUPS_BYTES = 12, 700_000
SEED = 0
TRIES = 4


def write_report(run: Path, output: Path | None = None) -> Path:
    """One self-contained HTML page about a run, finished or not.

    However long the run, the page stays below about 5 MB: it shows a sample of the response sets, chosen by rule and seed, and
    says how many it left out.

    Args:
        run: a run folder of `dynamicrubric coevolve`, or a folder with records (`records/*.jsonl` in it, or `*.jsonl`).
        output: the page; without it `report.html` in the folder.

    Returns:
        The page's path.

    Raises:
        DataError: no such folder, nothing in it to report on, or a run that rewrites its records each time they are read.
        OSError: the page cannot be written.
    """
    output = Path(output) if output else Path(run) / "report.html"
    write_atomic(output, _render_unchanged(Path(run)))
    return output


def _render_unchanged(run: Path) -> str:
    """The page about one state of the records: where a run rewrites them meanwhile, it is begun anew."""
    for _ in range(TRIES - 1):
        try:
            return render(read_run(run))
        except RecordsChangedError:
            continue
    return render(read_run(run))


def main(argv: Sequence[str]) -> int:
    """The command `dynamicrubric report`.

    Args:
        argv: the words after the command's name.

    Returns:
        The exit code, 0.

    Raises:
        DataError: there is nothing to report on, or the page cannot be written.
    """
    from rich.console import Console

    parser = argparse.ArgumentParser(prog="dynamicrubric report", description="One HTML page about a run, finished or not.")
    parser.add_argument("run", metavar="RUN", type=Path, help="run folder, or a folder that holds records/*.jsonl")
    parser.add_argument("--output", metavar="FILE", type=Path, help="the page; default: RUN/report.html")
    args = parser.parse_args(argv)
    try:
        page = write_report(args.run, args.output)
    except OSError as error:
        raise DataError(f"the report cannot be written to {error.filename}: {error.strerror}") from None
    Console(soft_wrap=True).print(str(page), markup=False, highlight=False)
    return 0


def render(data: RunData) -> str:
    """The page as text."""
    environment = _environment()
    cards: Any = environment.get_template("card.html").module
    numbers = {id(group): number for number, group in enumerate(data.groups, start=1)}
    best, worst = tables.ranked_items(data.items.values(), MOST_ITEMS)
    chosen = choose_sets(data.groups, with_items=[item.group for item in (*best, *worst)])
    unfolded = max((g for g in data.groups if g.unscorable is None), key=lambda group: group.gap, default=None)

    def set_card(group: Group, _: str) -> str:
        return cards.response_set(views.set_view(data, group, numbers[id(group)], unfolded=group is unfolded))

    sets = fill_up(chosen, set_card, most=MOST_SETS, most_bytes=SETS_BYTES)
    rubric_groups = groups_of_rubrics(data.sampled)
    trained = fill_up(
        choose_rubric_groups(rubric_groups),
        lambda rubrics, why: cards.rubric_group(views.rubrics_view(data, rubrics, why)),
        most=MOST_RUBRIC_GROUPS,
        most_bytes=RUBRIC_GROUPS_BYTES,
    )
    links = {id(group): numbers[id(group)] for group, _ in sets}
    return environment.get_template("page.html").render(
        head=views.head_view(data),
        written=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        tables=views.round_tables(data),
        cells=tables.CELLS,
        charts=[_drawn_charts(data, *kind) for kind in tables.kinds(data)],
        items=views.items_view(data, best, worst, links),
        sets=[card for _, card in sorted(sets, key=lambda pair: numbers[id(pair[0])])],
        set_count=len(data.groups),
        rounds=sorted({group.phase.round for group, _ in sets}),
        trained=[card for _, card in sorted(trained, key=lambda pair: (pair[0][0].phase.round, pair[0][0].step))],
        rubric_group_count=len(rubric_groups),
        failures=views.failures_view(data, links),
    )


def _drawn_charts(data: RunData, title: str, measures: Any, phases: Any) -> dict[str, Any]:
    main_charts, others, constant = tables.charts(tables.track(data, phases), measures)
    names = (f"{title.split()[0].lower()}-{number}" for number in itertools.count(1))
    drawn = [[(chart, plots.draw(chart, name=next(names))) for chart in part] for part in (main_charts, others)]
    return {"title": title, "main": drawn[0], "others": drawn[1], "constant": constant}


def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("openrlhf_dynamicrubric.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # What autoescape leaves alone: characters that no one sees, but browsers act upon.
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters["csp_hash"] = lambda script: base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.filters["decimal"] = tables.decimal
    environment.filters["percent"] = tables.percent
    return environment


def fill_up(
    candidates: Iterable[tuple[T, str]], draw: Callable[[T, str], str], *, most: int, most_bytes: int
) -> list[tuple[T, str]]:
    """Candidates with their HTML, in order, as many as fit; the first one always does.

    Args:
        candidates: pairs of a thing and the reason why it is shown, the most important first.
        draw: makes the HTML of one.
        most: most things.
        most_bytes: most bytes of HTML together.

    Returns:
        Pairs of a thing and its HTML.
    """
    filled: list[tuple[T, str]] = []
    used, missed = 0, 0
    for thing, why in candidates:
        if len(filled) == most or missed == 10:
            break
        html = draw(thing, why)
        size = len(html.encode())
        if filled and used + size > most_bytes:
            missed += 1  # a smaller one may still fit
            continue
        used += size
        filled.append((thing, html))
    return filled


def choose_sets(groups: Sequence[Group], *, with_items: Sequence[Group] = (), seed: int = SEED) -> list[tuple[Group, str]]:
    """All groups, those to show first in front, each with the reason.

    Of each phase the first, the last, the widest gaps, one without any gap and the first unscorable ones; then those whose
    items are listed; then the others, shuffled.
    """
    wishes = []
    for of_phase in _by_phase(groups):
        scored = [group for group in of_phase if group.unscorable is None]
        widest = sorted(scored, key=lambda group: -group.gap)
        flat = [group for group in scored if group.gap == 0]
        failed = [group for group in of_phase if group.unscorable is not None]
        wishes.append(
            [(group, "first") for group in of_phase[:1]]
            + [(group, "last") for group in of_phase[-1:]]
            + [(group, "widest gap") for group in widest[:2] if group.gap > 0]
            + [(group, "unscorable") for group in failed[:3]]
            + [(group, "no gap") for group in flat[:1]]
        )
    return _first_wishes_then_sample(wishes, [(group, "listed item") for group in with_items], groups, seed)


def groups_of_rubrics(sampled: Sequence[Sampled]) -> list[list[Sampled]]:
    """Rubrics that were sampled for one response set at one step; the first member of each begins a group."""
    groups: list[list[Sampled]] = []
    for rubric in sampled:
        if rubric.first or not groups:
            groups.append([])
        groups[-1].append(rubric)
    return groups


def choose_rubric_groups(groups: Sequence[list[Sampled]], *, seed: int = SEED) -> list[tuple[list[Sampled], str]]:
    """All groups of rubrics, those to show first in front.

    Of each phase the first, the last, the widest spread of R_disc and the most invalid; then the others, shuffled.
    """
    wishes = []
    for of_phase in _by_phase(groups):
        spread = max(of_phase, key=_disc_spread)
        invalid = max(of_phase, key=lambda rubrics: sum(rubric.invalid for rubric in rubrics))
        wishes.append(
            [(of_phase[0], "first"), (of_phase[-1], "last"), (spread, "widest spread of R_disc")]
            + ([(invalid, "most invalid")] if any(rubric.invalid for rubric in invalid) else [])
        )
    return _first_wishes_then_sample(wishes, [], groups, seed)


def _disc_spread(rubrics: list[Sampled]) -> float:
    known = [rubric.disc for rubric in rubrics if rubric.disc == rubric.disc]
    return max(known) - min(known) if known else -1.0


def _by_phase(groups: Sequence[Any]) -> Iterator[list[Any]]:
    phase_of: Callable[[Any], Hashable] = lambda group: id((group[0] if isinstance(group, list) else group).phase)  # noqa: E731
    return (list(members) for _, members in itertools.groupby(groups, key=phase_of))


def _first_wishes_then_sample(
    wishes: Sequence[list[tuple[T, str]]], more: Sequence[tuple[T, str]], everything: Sequence[T], seed: int
) -> list[tuple[T, str]]:
    longest = max(map(len, wishes), default=0)
    ordered = [wish[index] for index in range(longest) for wish in wishes if index < len(wish)]
    rest = list(everything)
    random.Random(seed).shuffle(rest)
    chosen: dict[int, tuple[T, str]] = {}
    for thing, why in [*ordered, *more, *((thing, "sample") for thing in rest)]:
        chosen.setdefault(id(thing), (thing, why))
    return list(chosen.values())
