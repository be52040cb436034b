"""What `dynamicrubric score` prints: a table for a set, and one for all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from openrlhf_dynamicrubric import prompts
from openrlhf_dynamicrubric.display import alike, one_line, visible
from openrlhf_dynamicrubric.metrics import PREFIX, group_metrics
from openrlhf_dynamicrubric.objectives import anchor_accuracy, anchor_ranking, discriminability
from openrlhf_dynamicrubric.scoring import score_gap
from openrlhf_dynamicrubric.types import Evaluation, FloatArray, Unscorable, Usage

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

Pair = tuple[Evaluation | Unscorable, Evaluation | None]
"""A set's outcome, and its anchors under the same rubric."""

CRITERION_WIDTH = 24
"""Narrowest column of criteria before verdicts are packed into one column, in characters."""


def show_set(console: Console, number: int, outcome: Evaluation | Unscorable, anchors: Evaluation | None) -> None:
    """One set: its rubric, a verdict a response, scores and gap; or why there are none."""
    from rich.text import Text

    response_set = outcome.response_set
    head = Text(f"{number}. {one_line(response_set.id, 40)}  ", style="bold", end="")
    prompt = one_line(prompts.conversation_text(response_set.prompt), max(20, console.width - len(head.plain)))
    console.print(Text.assemble(head, (prompt, "not bold")), soft_wrap=True)
    if isinstance(outcome, Unscorable):
        reason = f"   unscorable ({outcome.kind.replace('_', ' ')}): {visible(outcome.reason)}"
        console.print(Text(reason, style="yellow"))
        console.print()
        return
    console.print(_matrix(console, outcome, anchors))
    gap = f"   score gap {score_gap(outcome.scores_K):.3f}   R_disc {_disc(outcome):.3f}"
    if anchors is not None:
        gap += f"   R_anchor {anchor_ranking(anchors.scores_K):.3f}   anchor accuracy {anchor_accuracy(anchors.scores_K):.0%}"
    console.print(Text(gap))
    for item in outcome.dropped:
        console.print(Text(f"   dropped, a verdict is missing: {one_line(item.criterion, 200)}", style="yellow"))
    console.print()


def _matrix(console: Console, outcome: Evaluation, anchors: Evaluation | None) -> Table:
    """Items down, responses and anchors across; where the terminal is too narrow, verdicts as one word of marks."""
    from rich.table import Table
    from rich.text import Text

    parts = [("", outcome)] + ([("A", anchors)] if anchors is not None else [])
    columns = sum(part.scores_K.size for _, part in parts)
    wide = console.width >= CRITERION_WIDTH + 16 + 5 * columns
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim", show_edge=False)
    table.add_column("   w", justify="right", no_wrap=True)
    table.add_column("criterion", ratio=1 if console.width < 140 else None, min_width=CRITERION_WIDTH, overflow="fold")
    for letter, part in parts:
        names = [f"{letter}{k}" for k in range(1, part.scores_K.size + 1)]
        for name in names if wide else [f"{names[0]}–{names[-1]}"]:
            table.add_column(name, justify="right" if wide else "left", no_wrap=True)
    table.add_column("yes", justify="right", no_wrap=True)
    for m, item in enumerate(outcome.rubric.items):
        cells = [cell for _, part in parts for cell in _marks(part.verdicts_MK[m], wide, console)]
        yes = f"{outcome.verdicts_MK[m].sum():.0f}/{outcome.scores_K.size}"
        table.add_row(str(item.weight), Text(visible(" ".join(item.criterion.split()))), *cells, yes)
    if wide:
        table.add_row(
            "", Text("score", style="bold"), *(Text(f"{s:.2f}", style="bold") for _, p in parts for s in p.scores_K), ""
        )
    else:
        for name, (_, part) in zip(("scores", "anchors' scores"), parts, strict=False):
            row = " ".join(f"{score:.2f}" for score in part.scores_K)
            table.add_row("", Text.assemble((f"{name}: ", "bold"), row), *[""] * (len(parts) + 1))
    return table


def _marks(verdicts_K: FloatArray, wide: bool, console: Console) -> Iterator[Text]:
    from rich.text import Text

    yes, no = ("✓", "✗") if console.encoding.startswith("utf") else ("y", "n")
    marks = [Text(yes, style="bold blue") if verdict else Text(no, style="yellow") for verdict in verdicts_K]
    yield from marks if wide else [Text.assemble(*marks)]


def show_summary(console: Console, results: Sequence[Pair], *, seconds: float) -> None:
    """All sets in one table: counts, figures, cost; and below it why sets could not be scored."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for name, value, note in _summary(results, seconds):
        table.add_row(name, value, note)
    console.print(table)
    reasons = Table.grid(padding=(0, 1))
    reasons.add_column(justify="right")
    reasons.add_column(overflow="fold")
    for count, kind, reason in _reasons([outcome for outcome, _ in results]):
        reasons.add_row(Text(f"  {count} x"), Text(f"{kind}: {one_line(reason, 600)}"), style="yellow")
    if reasons.row_count:
        console.print(reasons)


def _summary(results: Sequence[Pair], seconds: float) -> Iterator[tuple[str, str, str]]:
    outcomes = [outcome for outcome, _ in results]
    scored = [outcome for outcome in outcomes if isinstance(outcome, Evaluation)]
    anchors = [judged.scores_K for _, judged in results if judged is not None]
    metrics = {name.removeprefix(PREFIX): value for name, value in group_metrics(outcomes, seconds=seconds).items()}
    yield "response sets", f"{len(results)}", ""
    yield "scored", f"{len(scored)}", ""
    yield "unscorable", f"{len(results) - len(scored)}", "no scores; reasons below" if len(scored) < len(results) else ""
    if scored:
        yield "score gap", f"{metrics['score_gap']:.3f}", "mean |E_i - E_j|; higher separates more"
        yield "zero-variance sets", f"{metrics['zero_variance_groups']:.1%}", "all scores equal; lower is better"
        yield "saturated items", f"{metrics['saturated_items']:.1%}", "met by all or none; lower is better"
        yield "R_disc", f"{np.mean([_disc(outcome) for outcome in scored]):.3f}", "at most 0.25; higher is better"
        yield "items a rubric", f"{metrics['items_per_rubric']:.1f}", ""
    if anchors:
        yield (
            "R_anchor",
            f"{np.mean([anchor_ranking(scores_N) for scores_N in anchors]):.3f}",
            "0 is the limit; higher is better",
        )
        accuracy = np.mean([anchor_accuracy(scores_N) for scores_N in anchors])
        yield "anchor accuracy", f"{accuracy:.1%}", f"pairs in order; 50% is chance; {len(anchors)} sets with anchors"
    if "invalid_rubrics" in metrics:
        yield "invalid rubrics", f"{metrics['invalid_rubrics']:.1%}", "of what the generator wrote"
    if metrics["failed_verdicts"]:
        yield "failed verdicts", f"{metrics['failed_verdicts']:.0f}", "their items were dropped"
    judged = sum((judged.verifier_usage for _, judged in results if judged is not None), Usage())
    yield "generator tokens", f"{metrics['generator_tokens']:,.0f}", ""
    yield "verifier tokens", f"{metrics['verifier_tokens'] + judged.tokens:,.0f}", ""
    yield "seconds", f"{seconds:,.1f}", ""


def _reasons(outcomes: Sequence[Evaluation | Unscorable]) -> list[tuple[int, str, str]]:
    counts: dict[tuple[str, str], list[str]] = {}
    for outcome in outcomes:
        if isinstance(outcome, Unscorable):
            counts.setdefault((outcome.kind.replace("_", " "), alike(outcome.reason)), []).append(outcome.reason)
    return sorted(((len(reasons), kind, reasons[0]) for (kind, _), reasons in counts.items()), reverse=True)


def _disc(outcome: Evaluation) -> float:
    return discriminability(outcome.rubric.weights_M, outcome.verdicts_MK)
