"""What the report's templates are filled with: plain values, not a tag among them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from openrlhf_dynamicrubric import prompts
from openrlhf_dynamicrubric.display import model_name, one_line
from openrlhf_dynamicrubric.report import tables
from openrlhf_dynamicrubric.report.data import Group, Item, Phase, Reason, RunData, Sampled, Source
from openrlhf_dynamicrubric.report.tables import Curve, Measure
from openrlhf_dynamicrubric.text import shorten

MOST_CHARS, MOST_CRITERION_CHARS = 12_000, 1_000
MOST_REASONS = 20
PHASE_TITLES = {"sample": "sampling", "train-generator": "generator training", "train-policy": "policy training"}
YES_SHARES = (
    ("none", "no response meets it"),
    ("0", "fewer than a quarter"),
    ("1", "a quarter to a half"),
    ("2", "half to three quarters"),
    ("3", "three quarters and more"),
    ("all", "every response meets it"),
)


def head_view(data: RunData) -> dict[str, Any]:
    """What ran, how far it came, what it cost."""
    config: Mapping[str, Any] = data.run.get("config") or {}
    done = [phase for phase in data.phases if phase.done is not None]
    judges = _judges(data, config)
    seconds = [phase.seconds for phase in data.phases if phase.seconds is not None]
    return {
        "name": data.folder.resolve().name,
        "alone": not data.phases[0].round,
        "done": len(done),
        "planned": _planned(data, config),
        "facts": [(name, value) for name, value in _facts(data, config, judges, sum(seconds)) if value not in ("", None)],
        "embedded": any(name == "embedded" or "smollm2-135m" in name.lower() for names in judges.values() for name in names),
        "phases": [_phase_view(data, phase) for phase in data.phases if phase.round],
        "costs": [(role, usage) for role, usage in data.usage.items() if usage.calls],
        "config": json.dumps(config, indent=2, ensure_ascii=False) if config else "",
        "damaged": data.damaged[:MOST_REASONS],
        "damaged_count": len(data.damaged),
    }


def _planned(data: RunData, config: Mapping[str, Any]) -> int:
    rounds, trained = config.get("rounds"), config.get("generator_rounds")
    if not isinstance(rounds, int):
        return len(data.phases)
    return rounds + 2 * (min(rounds, trained) if isinstance(trained, int) else rounds)


def _judges(data: RunData, config: Mapping[str, Any]) -> dict[str, list[str]]:
    models = config.get("models") or {}
    named = {role: [model_name(str(models[role]))] for role in ("generator", "verifier") if role in models}
    return {**{role: sorted(names) for role, names in data.judges.items()}, **named}


def _facts(data: RunData, config: Mapping[str, Any], judges: Mapping[str, list[str]], seconds: float) -> list[tuple[str, Any]]:
    sizes = sorted({group.size for group in data.groups})
    per_set = (config.get("generator") or {}).get("num_generations")
    return [
        ("Policy", model_name(str((config.get("models") or {}).get("policy", "")))),
        ("Generator", ", ".join(judges.get("generator", ()))),
        ("Verifier", ", ".join(judges.get("verifier", ()))),
        ("Rounds", config.get("rounds")),
        ("K, responses a set", ", ".join(map(str, sizes)) or (config.get("policy") or {}).get("num_generations")),
        ("G, rubrics a set", per_set),
        ("Seed", config.get("seed")),
        ("Response sets scored", f"{sum(g.unscorable is None for g in data.groups):,} of {len(data.groups):,}"),
        ("Rubrics in training", f"{len(data.sampled):,}" if data.sampled else ""),
        ("Time", tables.duration(seconds)),
        ("Prompts", ", ".join(sorted(data.prompts))),
        ("Version", data.run.get("version")),
        *sorted((data.run.get("versions") or {}).items()),
    ]


def _phase_view(data: RunData, phase: Phase) -> dict[str, Any]:
    step, total = phase.progress.get("step"), phase.progress.get("total")
    return {
        "round": phase.round,
        "title": PHASE_TITLES[phase.name],
        "done": phase.done is not None,
        "progress": f"{step} of {total} {phase.progress.get('unit', 'steps')}" if step is not None else "",
        "steps": tables.steps_done(data, phase),
        "time": tables.duration(phase.seconds),
        "log": phase.log_tail,
    }


def round_tables(data: RunData) -> list[dict[str, Any]]:
    """For each kind of training a table: a row a measure, a column a round."""
    result = []
    for title, measures, phases in tables.kinds(data):
        curves = [tables.phase_curves(data, phase) for phase in phases]
        known = {name for of_phase in curves for name in of_phase}
        shown = [m for m in measures if m.key in known and not (m.key == "chars" and tables.LENGTH in known)]
        rows = [_measure_row(measure, curves) for measure in shown]
        plain = [("Steps", [str(tables.steps_done(data, p)) for p in phases])]
        plain.append(("Time", [tables.duration(phase.seconds) for phase in phases]))
        columns = [f"round {phase.round}" if phase.round else "all" for phase in phases]
        result.append({"title": title, "columns": columns, "rows": rows, "plain": plain if phases else []})
    return result


def _measure_row(measure: Measure, curves: Sequence[Mapping[str, Curve]]) -> dict[str, Any]:
    cells = [tables.cell(measure, of_phase) for of_phase in curves]
    return {"title": measure.title, "note": measure.note, "better": measure.better, "cells": cells}


def items_view(data: RunData, best: Sequence[Item], worst: Sequence[Item], links: Mapping[int, int]) -> dict[str, Any]:
    """The criteria that tell responses apart best and worst, and how all items spread."""
    total = sum(data.yes_shares.values())
    return {
        "total": total,
        "distinct": len(data.items),
        "shares": [(label, data.yes_shares[key], data.yes_shares[key] / total if total else 0.0) for key, label in YES_SHARES],
        "lists": [
            ("Most discriminating", [_item_view(item, links) for item in best]),
            ("Least discriminating", [_item_view(item, links) for item in worst]),
        ],
    }


def _item_view(item: Item, links: Mapping[int, int]) -> dict[str, Any]:
    return {
        "criterion": shorten(item.criterion, MOST_CRITERION_CHARS)[0],
        "weight": f"{item.weight / item.count:.3g}",
        "yes": item.yes / item.count,
        "variance": item.variance / item.count,
        "count": item.count,
        "where": _where_and_id(item.group),
        "link": links.get(id(item.group)),
    }


def failures_view(data: RunData, links: Mapping[int, int]) -> dict[str, Any]:
    """Groups without scores, and texts of the generator that were no rubric, by reason."""
    unscorable = sorted(data.unscorable.values(), key=lambda reason: -reason.count)
    rejected = sorted(data.rejected.values(), key=lambda reason: -reason.count)
    return {
        "groups": len(data.groups),
        "count": sum(reason.count for reason in unscorable),
        "unscorable": [_reason_view(reason, links) for reason in unscorable[:MOST_REASONS]],
        "unscorable_kinds": len(unscorable),
        "rejected": [_reason_view(reason, links) for reason in rejected[:MOST_REASONS]],
        "rejected_count": sum(reason.count for reason in rejected),
    }


def _reason_view(reason: Reason, links: Mapping[int, int]) -> dict[str, Any]:
    return {
        "kind": reason.kind.replace("_", " "),
        "text": shorten(reason.text, 600)[0],
        "count": reason.count,
        "where": _where_and_id(reason.group) if reason.group else "",
        "link": links.get(id(reason.group)),
    }


def set_view(data: RunData, group: Group, number: int, *, unfolded: bool) -> dict[str, Any]:
    """One response set with its rubric, its verdicts and every response."""
    row = group.source.read()
    scores = row["scores"]
    return {
        "number": number,
        "unfolded": unfolded,
        "where": _where(group),
        "round": group.phase.round,
        "source": _source(data, group.source),
        "id": one_line(group.id, 80),
        "prompt": clip(prompts.conversation_text(row["prompt"])),
        "gap": group.gap,
        "disc": group.disc,
        "kind": "unscorable" if group.unscorable else "flat" if group.gap == 0 else "scored",
        "unscorable": row["unscorable"] and {name: clip(text) for name, text in row["unscorable"].items()},
        "responses": _texts(row["responses"], scores),
        "anchors": _texts(row.get("anchors") or [], row.get("anchor_scores")),
        "items": _items(row, _threshold(data)),
        "dropped": [{**item, "criterion": _criterion(item)} for item in row.get("dropped") or []],
        "failures": [clip(text) for text in (row.get("failures") or [])[:5]],
        "rejected": _rejected(row),
        "rubric_text": clip(row["rubric_text"]) if row.get("rubric_text") else None,
        "cut": row.get("cut_responses", 0),
    }


def _rejected(row: Mapping[str, Any]) -> list[dict[str, str]]:
    texts = [*(row.get("rejected_texts") or []), *[""] * len(row["rejected"])]
    return [{"reason": clip(why), "text": clip(text)} for why, text in zip(row["rejected"][:5], texts, strict=False)]


def rubrics_view(data: RunData, rubrics: Sequence[Sampled], why: str) -> dict[str, Any]:
    """The rubrics that were sampled for one response set, side by side."""
    rows = [rubric.source.read() for rubric in rubrics]
    response_set = data.response_set(rubrics[0].phase, rubrics[0].id)
    prompt, threshold = response_set.get("prompt"), _threshold(data)
    return {
        "why": why,
        "where": _where(rubrics[0]),
        "source": _source(data, rubrics[0].source),
        "id": one_line(rubrics[0].id, 80),
        "prompt": clip(prompts.conversation_text(prompt)) if prompt else None,
        "invalid": sum(rubric.invalid for rubric in rubrics),
        "responses": _texts(response_set.get("responses") or [], None),
        "anchors": _texts(response_set.get("anchors") or [], None),
        "rubrics": [_rubric_view(n, *pair, threshold) for n, pair in enumerate(zip(rubrics, rows, strict=True), start=1)],
    }


def _rubric_view(number: int, rubric: Sampled, row: Mapping[str, Any], threshold: float) -> dict[str, Any]:
    return {
        "number": number,
        "invalid": clip(row.get("invalid") or ""),
        "outage": clip(row.get("outage") or ""),
        "disc": rubric.disc,
        "anchor": rubric.anchor,
        "accuracy": rubric.accuracy,
        "advantage": "–" if math.isnan(rubric.advantage) else f"{rubric.advantage:+.2f}".replace("-", "−"),
        "scores": row.get("scores") or [],
        "anchor_scores": row.get("anchor_scores") or [],
        "items": _items(row, threshold),
        "text": clip(row.get("rubric_text") or ""),
    }


def clip(text: str) -> str:
    """A text short enough for a page of thousands; the cut says what it left out."""
    return shorten(text, MOST_CHARS)[0]


def _texts(texts: Sequence[str], scores: Sequence[float] | None) -> list[dict[str, Any]]:
    first: dict[str, int] = {}
    views = []
    for number, text in enumerate(texts, start=1):
        same = first.setdefault(text, number)
        views.append(
            {
                "number": number,
                "text": clip(text),
                "start": text[:300],
                "chars": len(text),
                "score": scores[number - 1] if scores else None,
                "same": same if same != number else None,
            }
        )
    return views


def _items(row: Mapping[str, Any], threshold: float) -> list[dict[str, Any]]:
    items = row.get("items") or []
    columns = [
        row.get(name) or [[]] * len(items) for name in ("verdicts", "probabilities", "anchor_verdicts", "anchor_probabilities")
    ]
    return [
        {
            "criterion": _criterion(item),
            "weight": item["weight"],
            "cells": _cells(verdicts_K, probabilities_K, threshold),
            "anchor_cells": _cells(anchors_N, anchor_probabilities_N, threshold),
            "yes": sum(verdicts_K),
            "of": len(verdicts_K),
            "saturated": len(set(verdicts_K)) == 1,
        }
        for item, verdicts_K, probabilities_K, anchors_N, anchor_probabilities_N in zip(items, *columns, strict=True)
    ]


def _criterion(item: Mapping[str, Any]) -> str:
    return shorten(item["criterion"], MOST_CRITERION_CHARS)[0]


def _threshold(data: RunData) -> float:
    config: Mapping[str, Any] = data.run.get("config") or {}
    value = (config.get("judge") or {}).get("verdict_threshold")
    return float(value) if isinstance(value, int | float) else 0.5


def _cells(verdicts: Sequence[int], probabilities: Sequence[float], threshold: float) -> list[dict[str, Any]]:
    known = probabilities or [math.nan] * len(verdicts)
    return [
        {"yes": bool(yes), "p": p, "shown": tables.probability(p, bool(yes), threshold), "sure": round(2 * abs(p - 0.5), 2)}
        for yes, p in zip(verdicts, known, strict=True)
    ]


def _where(row: Group | Sampled) -> str:
    parts = [f"round {row.phase.round}" if row.phase.round else "", f"step {row.step}", "evaluation" if row.evaluation else ""]
    return ", ".join(part for part in parts if part)


def _where_and_id(group: Group) -> str:
    return f"{_where(group)}, {one_line(group.id, 24)}" if group.id else _where(group)


def _source(data: RunData, source: Source) -> str:
    return f"{source.path.relative_to(data.folder)}, line {source.line}"
