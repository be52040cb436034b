from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from openrlhf_dynamicrubric import terminal
from openrlhf_dynamicrubric.phases import plan
from openrlhf_dynamicrubric.records import RecordFile, group_record, usage_record
from openrlhf_dynamicrubric.report import write_report
from openrlhf_dynamicrubric.report.read import read_run
from openrlhf_dynamicrubric.report.views import round_tables
from openrlhf_dynamicrubric.run_config import RunConfig
from openrlhf_dynamicrubric.types import Evaluation, ResponseSet, Rubric, RubricItem, Usage


def test_time_left_counts_from_where_this_attempt_began_and_runs_down_during_a_step() -> None:
    progress = {"step": 6, "first": 4, "total": 10, "started": 100.0, "updated": 108.0}
    assert [terminal.seconds_left(progress, now=now) for now in (108.0, 110.0, 200.0)] == [16.0, 14.0, 0.0]
    assert terminal.seconds_left({**progress, "step": 4}, now=108.0) is None
    assert terminal.seconds_left({}, now=108.0) is None


def test_a_run_counts_known_kinds_by_their_mean_and_others_by_the_mean_of_all() -> None:
    spent = {"sample": [10.0, 20.0], "train-generator": [60.0]}
    left = terminal.run_seconds_left(5.0, 25.0, ["sample", "train-generator", "train-policy"], spent)
    assert left == 5.0 + 15.0 + 60.0 + (10.0 + 20.0 + 60.0 + 30.0) / 4


def test_without_a_terminal_there_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(terminal.time, "time", lambda: clock[0])
    console = Console(file=io.StringIO(), width=40)
    watch = terminal.Watch(console, "round 1/2 sample", later=["train-policy"])
    with watch.shown():
        for second in range(61):
            clock[0] = 1000.0 + second
            step = second // 10
            progress = {
                "step": step,
                "first": 0,
                "total": 6,
                "started": 1000.0,
                "updated": 1000.0 + 10 * step,
                "unit": "prompts",
            }
            watch.update(progress if second > 20 else {})
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == [
        "  round 1/2 sample: starting · 0:15",
        "  round 1/2 sample: 3/6 prompts · 0:30 · phase ~0:30 left · run ~1:30 left",
        "  round 1/2 sample: 4/6 prompts · 0:45 · phase ~0:15 left · run ~1:15 left",
        "  round 1/2 sample: 6/6 prompts · 1:00 · phase ~0:00 left · run ~1:00 left",
    ]


def test_before_the_first_step_a_phase_is_taken_to_last_as_in_earlier_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: clock[0])
    console = Console(file=io.StringIO(), width=100)
    watch = terminal.Watch(
        console, "it", kind="sample", later=["train-policy"], spent={"sample": [40.0], "train-policy": [70.0]}
    )
    clock[0] += 16
    watch.update({})
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "  it: starting · 0:16 · phase ~0:24 left · run ~1:34 left\n"


def test_on_a_terminal_there_is_a_bar() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    watch = terminal.Watch(console, "round 1/2 sample")
    with watch.shown():
        watch.update({"step": 3, "first": 0, "total": 6, "started": 0.0, "updated": 1.0, "unit": "prompts"})
    assert isinstance(console.file, io.StringIO)
    assert "3/6 prompts" in console.file.getvalue()


def group(*, equal: bool) -> dict[str, Any]:
    """Two responses with scores 1 and 0, or both 1."""
    verdicts_MK = np.array([[1.0, 1.0 if equal else 0.0]])
    rubric = Rubric((RubricItem("Is good", 2),))
    return group_record(Evaluation(ResponseSet("x", ("a", "b")), rubric, verdicts_MK, verdicts_MK, verdicts_MK[0]))


def rubric(*, disc: float | None, anchors: list[float] | None, invalid: str | None = None) -> dict[str, Any]:
    row = {"kind": "rubric", "id": "p", "member": 0, "disc": disc, "anchor": -1.5, "anchor_scores": anchors, "invalid": invalid}
    return {**row, "verifier_usage": usage_record(Usage())}


def test_the_table_tells_what_the_report_tells(tmp_path: Path) -> None:
    phases = plan(RunConfig(output_dir=str(tmp_path), rounds=3))
    _, generator, policy = phases[:3]
    groups = RecordFile(policy.folder / "records/groups.jsonl")
    for step, equal in enumerate([True, False, False, False, False, True, True, False]):
        groups.append([group(equal=equal)], step=step)
    rubrics = RecordFile(generator.folder / "records/rubrics.jsonl")
    rubrics.append([rubric(disc=0.25, anchors=[1.0, 0.0]), rubric(disc=0.0, anchors=None, invalid="no JSON")], step=0)
    for phase, seconds in zip(phases[:3], (10, 20, 45), strict=True):
        phase.folder.mkdir(exist_ok=True)
        (phase.folder / "done.json").write_text(json.dumps({"seconds": seconds}))
    [row] = terminal.summary(phases)
    assert row == {
        "round": "1",
        "Score gap": "0.625 (0.500 → 0.500)",
        "Zero-variance groups": "37.5\u202f% (50\u202f% → 50\u202f%)",
        "R_disc": "0.125",
        "R_anchor": "−1.500",
        "Anchor accuracy": "100\u202f%",
        "Invalid rubrics": "50\u202f% / –",
        "Unscorable": "0\u202f% / 0\u202f%",
        "Time": "1:15",
    }
    of_generator, of_policy = [{r["title"]: str(r["cells"][0]) for r in t["rows"]} for t in round_tables(read_run(tmp_path))]
    for name in ("Score gap", "Zero-variance groups"):
        assert row[name] == of_policy[name]
    for name in ("R_disc", "R_anchor", "Anchor accuracy"):
        assert row[name] == of_generator[name]
    assert row["Unscorable"] == f"{of_generator['Unscorable']} / {of_policy['Unscorable'].split(' (')[0]}"
    [table] = terminal.summary_tables(phases, width=80)
    console = Console(file=io.StringIO(), width=80)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    assert "0.625 (0.500 → 0.500)" in console.file.getvalue()


def test_the_table_and_the_page_say_the_same_about_what_their_numbers_are(tmp_path: Path) -> None:
    says = "mean over the steps (over their first quarter → over their last quarter)"
    assert terminal.legend().startswith(f"{says}; a / b: generator training / policy training")
    RecordFile(tmp_path / "records/groups.jsonl").append([group(equal=False)], step=0)
    assert f"In a cell: {says}." in write_report(tmp_path).read_text()


def test_before_any_record_there_is_no_table(tmp_path: Path) -> None:
    phases = plan(RunConfig(output_dir=str(tmp_path), rounds=1))
    assert list(terminal.summary_tables(phases, width=80)) == []
    phases[0].folder.mkdir(parents=True)
    assert list(terminal.summary_tables(phases, width=80)) == []


def test_many_rounds_make_several_tables(tmp_path: Path) -> None:
    phases = plan(RunConfig(output_dir=str(tmp_path), rounds=5))
    for phase in phases:
        if phase.kind == "train-policy":
            file = RecordFile(phase.folder / "records/groups.jsonl")
            for step in range(4):
                file.append([group(equal=step % 2 == 0)], step=step)
    tables = list(terminal.summary_tables(phases, width=80))
    assert [[column.header for column in table.columns] for table in tables] == [
        ["round", "1", "2"],
        ["round", "3", "4"],
        ["round", "5"],
    ]


def test_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    assert terminal.tail(log) == []
    log.write_bytes(b"first\n" * 10_000 + b"50%\r100%\n\n  \nbroken \xff\nlast")
    assert terminal.tail(log, lines=4) == ["50%", "100%", "broken \ufffd", "last"]
