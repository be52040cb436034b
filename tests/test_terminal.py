from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from openrlhf_dynamicrubric import terminal
from openrlhf_dynamicrubric.phases import plan
from openrlhf_dynamicrubric.records import RecordFile
from openrlhf_dynamicrubric.run_config import RunConfig


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


def test_the_table_tells_first_and_last_step_and_shares(tmp_path: Path) -> None:
    phases = plan(RunConfig(output_dir=str(tmp_path), rounds=3))
    _, generator, policy = phases[:3]
    for step, (gap, zero) in enumerate([(0.125, 1.0), (0.5, 0.0)], start=1):
        row = {"kind": "metrics", "dynamicrubric/score_gap": gap, "dynamicrubric/zero_variance_groups": zero, "loss": None}
        RecordFile(policy.folder / "records/metrics.jsonl").append([row], step=step)
    RecordFile(policy.folder / "records/groups.jsonl").append([{"kind": "group"}], step=0)
    RecordFile(generator.folder / "records/metrics.jsonl").append(
        [{"kind": "metrics", "dynamicrubric/disc": 0.25, "dynamicrubric/anchor": -1.5, "dynamicrubric/invalid_rubrics": 0.5}],
        step=1,
    )
    for phase, seconds in zip(phases[:3], (10, 20, 45), strict=True):
        phase.folder.mkdir(exist_ok=True)
        (phase.folder / "done.json").write_text(json.dumps({"seconds": seconds}))
    assert terminal.summary(phases) == [
        {
            "round": "1",
            "score gap": "0.125 → 0.500",
            "zero variance": "0.50",
            "R_disc": "0.250 → 0.250",
            "R_anchor": "-1.500 → -1.500",
            "anchor accuracy": "–",
            "invalid rubrics": "0.50 / –",
            "unscorable": "– / –",
            "time": "1:15",
        }
    ]
    [table] = terminal.summary_tables(phases, width=80)
    console = Console(file=io.StringIO(), width=80)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    assert "0.125 → 0.500" in console.file.getvalue()


def test_many_rounds_make_several_tables(tmp_path: Path) -> None:
    phases = plan(RunConfig(output_dir=str(tmp_path), rounds=5))
    for phase in phases:
        RecordFile(phase.folder / "records/metrics.jsonl").append([{"kind": "metrics", "dynamicrubric/score_gap": 0.5}], step=1)
    tables = list(terminal.summary_tables(phases, width=80))
    assert [[column.header for column in table.columns] for table in tables] == [["round", "1", "2", "3"], ["round", "4", "5"]]


def test_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    assert terminal.tail(log) == []
    log.write_bytes(b"first\n" * 10_000 + b"50%\r100%\n\n  \nbroken \xff\nlast")
    assert terminal.tail(log, lines=4) == ["50%", "100%", "broken \ufffd", "last"]
