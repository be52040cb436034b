"""What a run left on disk, read once, line by line, and kept small."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from openrlhf_dynamicrubric.display import alike
from openrlhf_dynamicrubric.errors import DataError
from openrlhf_dynamicrubric.objectives import anchor_accuracy, anchor_ranking, discriminability
from openrlhf_dynamicrubric.phases import DONE, KINDS, LOG, PROGRESS, read_json
from openrlhf_dynamicrubric.records import SCHEMA
from openrlhf_dynamicrubric.report.data import Group, Item, Phase, Reason, RunData, Sampled, Source, rows_of
from openrlhf_dynamicrubric.scoring import score_gap
from openrlhf_dynamicrubric.types import Usage

LOG_LINES = 40
LARGEST = 1e300


def read_run(folder: Path) -> RunData:
    """What a run, finished or not, left on disk.

    Args:
        folder: a run folder of `dynamicrubric coevolve`; or a folder of records: `records/*.jsonl` in it, or `*.jsonl`.

    Returns:
        Numbers and places. A line that is not a whole record is passed over and named in `damaged`.

    Raises:
        DataError: no such folder, or nothing in it that a report could show.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; name a run folder, or a folder that holds records/*.jsonl")
    data = RunData(folder, run=read_json(folder / "run.json"))
    data.phases = _phases(folder)
    if not data.phases:
        raise DataError(f"{folder} holds neither round-* folders nor records/*.jsonl: there is nothing to report on")
    for phase in data.phases:
        for path in _record_files(phase):
            for source, row in rows_of(path, data.damaged):
                try:
                    _take(data, phase, source, row)
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    data.damaged.append(f"{path.relative_to(folder)}, line {source.line}: {type(error).__name__}: {error}")
    return data


def _phases(folder: Path) -> list[Phase]:
    phases = []
    for round_folder in sorted(folder.glob("round-*")):
        number = re.fullmatch(r"round-(\d+)", round_folder.name)
        for name in KINDS if number else ():
            if (round_folder / name).is_dir():
                phases.append(_phase(round_folder / name, int(number[1]), name))  # pyright: ignore[reportOptionalSubscript]
    if not phases and (_record_files(alone := Phase(folder, 0, "records"))):
        phases.append(alone)
    return phases


def _phase(folder: Path, round_number: int, name: str) -> Phase:
    phase = Phase(folder, round_number, name, read_json(folder / DONE) if (folder / DONE).exists() else None)
    phase.progress = read_json(folder / PROGRESS)
    for path in (folder / DONE, folder / PROGRESS, folder / LOG):
        if path.exists():
            phase.ended = path.stat().st_mtime
            break
    log = folder / LOG
    if phase.done is None and log.exists():
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 20_000))
            lines = file.read().decode("utf-8", "replace").replace("\r", "\n").splitlines()
        phase.log_tail = "\n".join(lines[-LOG_LINES:])
    return phase


def _record_files(phase: Phase) -> list[Path]:
    if phase.round:
        return sorted(phase.folder.glob("records/*.jsonl"))
    return sorted(phase.folder.rglob("records/*.jsonl")) or sorted(phase.folder.glob("*.jsonl"))


def _take(data: RunData, phase: Phase, source: Source, row: dict[str, Any]) -> None:
    if row.get("schema", SCHEMA) > SCHEMA:
        raise ValueError(f"schema {row['schema']} is newer than this program's {SCHEMA}")
    if row.get("kind") not in ("group", "rubric", "metrics"):
        raise ValueError(f"a record of kind {row.get('kind')!r}")
    if isinstance(time := row.get("time"), int | float):
        phase.started = min(phase.started or time, time)
        if not phase.round:
            phase.ended = max(phase.ended or time, time)
    if "prompts" in row:
        data.prompts.add(str(row["prompts"]))
    for role in ("generator", "verifier"):
        if isinstance(row.get(role), str):
            data.judges.setdefault(role, set()).add(row[role])
    if row["kind"] == "metrics":
        phase.metrics.append((int(row["step"]), numbers(row)))
    elif row["kind"] == "group":
        _take_group(data, phase, source, row)
    else:
        _take_sampled(data, phase, source, row)


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a log line by name, as TRL names them; bookkeeping, and what no axis can show, left out."""
    row = {**row, **row["metrics"]} if isinstance(row.get("metrics"), dict) else row
    skipped = {"schema", "step", "time", "round", "epoch"}
    known = {key: value for key, value in row.items() if key not in skipped and not isinstance(value, bool)}
    return {key: float(value) for key, value in known.items() if isinstance(value, int | float) and abs(value) < LARGEST}


def _take_group(data: RunData, phase: Phase, source: Source, row: dict[str, Any]) -> None:
    unscorable, scores_K = row["unscorable"], row["scores"]
    rejected = [str(reason) for reason in row["rejected"]]
    anchors_N = row.get("anchor_scores")
    numbers_of_rubric = {"gap": np.nan, "disc": np.nan, "mean_score": np.nan, "items": 0, "saturated": 0}
    if scores_K is not None:
        weights_M = [item["weight"] for item in row["items"]]
        verdicts_MK = np.asarray(row["verdicts"], dtype=np.float64)
        mean_M = verdicts_MK.mean(axis=1)
        numbers_of_rubric = {
            "gap": score_gap(scores_K),
            "disc": discriminability(weights_M, verdicts_MK),
            "mean_score": float(np.mean(scores_K)),
            "items": len(weights_M),
            "saturated": int(((mean_M == 0) | (mean_M == 1)).sum()),
        }
    group = Group(
        phase=phase,
        source=source,
        step=int(row["step"]),
        id=str(row["id"]),
        unscorable=unscorable["kind"] if unscorable else None,
        rejected=len(rejected),
        attempts=len(rejected) + (row.get("rubric_text") is not None),
        chars=float(np.mean([len(text) for text in row["responses"]])),
        size=len(row["responses"]),
        evaluation=row.get("mode") == "eval",
        anchor=anchor_ranking(anchors_N) if anchors_N else np.nan,
        accuracy=anchor_accuracy(anchors_N) if anchors_N else np.nan,
        **numbers_of_rubric,
    )
    data.groups.append(group)
    if scores_K is not None:
        _take_items(data, group, row["items"], np.asarray(row["verdicts"], dtype=np.float64))
    if unscorable:
        _count(data.unscorable, unscorable["kind"], unscorable["reason"], group)
    for reason in rejected:
        _count(data.rejected, "scoring", reason, group)
    for role in ("generator", "verifier"):
        data.usage[role] = data.usage.get(role, Usage()) + Usage(**row[f"{role}_usage"])


def _take_items(data: RunData, group: Group, items: list[dict[str, Any]], verdicts_MK: np.ndarray) -> None:
    for item, yes in zip(items, verdicts_MK.mean(axis=1), strict=True):
        key = " ".join(item["criterion"].casefold().split())
        known = data.items.setdefault(key, Item(item["criterion"], group))
        known.count += 1
        known.weight += item["weight"]
        known.yes += yes
        known.variance += yes * (1 - yes)
        data.yes_shares["none" if yes == 0 else "all" if yes == 1 else f"{min(int(yes * 4), 3)}"] += 1


def _count(reasons: dict[Any, Reason], kind: str, text: str, group: Group | None) -> None:
    reason = reasons.setdefault((kind, alike(text)), Reason(kind, text, group=group))
    reason.count += 1


def _take_sampled(data: RunData, phase: Phase, source: Source, row: dict[str, Any]) -> None:
    anchors_N = row.get("anchor_scores")
    rubric = Sampled(
        phase=phase,
        source=source,
        step=int(row["step"]),
        id=str(row["id"]),
        invalid=bool(row.get("invalid")),
        unscorable=bool(row.get("outage")),
        first=row.get("member", 0) == 0,
        evaluation=row.get("mode") == "eval",
        disc=_or_nan(row.get("disc")),
        anchor=_or_nan(row.get("anchor")),
        accuracy=anchor_accuracy(anchors_N) if anchors_N else np.nan,
        advantage=_or_nan(row.get("advantage")),
    )
    data.sampled.append(rubric)
    if row.get("invalid"):
        _count(data.rejected, "generator training", row["invalid"], None)
    data.usage["verifier"] = data.usage.get("verifier", Usage()) + Usage(**row["verifier_usage"])


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else float(value)
