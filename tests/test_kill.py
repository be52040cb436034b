"""Kills at random moments of every phase: the same command again ends in what an uninterrupted run gives, bit for bit."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from openrlhf_dynamicrubric.phases import KINDS, read_json
from tests.tiny_run import COEVOLVE, build_models, environment, results, tiny_options, write_options

VICTIMS = ("orchestrator", "phase", "group")
PHASES = [f"round-{number:02d}/{kind}" for number in (1, 2) for kind in KINDS]


@dataclass
class Kill:
    """When and whom: once the phase has done `step` steps, or is begun for None, after `delay` seconds."""

    phase: str
    victim: str
    step: int | None
    delay: float


def kills(durations: dict[str, float], seed: int) -> list[Kill]:
    """Two for each phase, one while it loads and one between its steps; all victims in turn."""
    dice = random.Random(seed)
    order = [VICTIMS[(number + number // 6) % 3] for number in range(2 * len(PHASES))]
    plan = []
    for number, phase in enumerate(PHASES):
        while_loading = Kill(phase, order[2 * number], None, dice.uniform(0.0, 0.6 * durations[phase]))
        at_step = Kill(phase, order[2 * number + 1], dice.randrange(0, 3), dice.uniform(0.0, 0.15))
        plan += [while_loading, at_step]
    return plan


def start(config: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COEVOLVE, str(config)], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def working_on(phase: Path, process: subprocess.Popen[str]) -> int | None:
    """The process id of that phase, while it runs."""
    for child in children(process.pid):
        try:
            if f"{phase}/phase.yaml" in Path(f"/proc/{child}/cmdline").read_text():
                return child
        except OSError:
            continue
    return None


def steps_done(phase: Path) -> int:
    """Checkpoints begun, or batches answered; -1 while the phase loads. Its progress file says it too late."""
    if not (phase / "progress.json").exists():
        return -1
    numbers = [int(path.name.removeprefix("checkpoint-")) for path in phase.glob("checkpoint-*")]
    lines = [path.read_bytes().count(b"\n") for path in phase.glob("responses.jsonl.part-*")]
    return max([0, *numbers, *lines])


def carry_out(kill: Kill, config: Path, run: Path) -> tuple[bool, str]:
    """Starts the run, and kills; False where it, or the phase, was over before."""
    process = start(config)
    folder = run / kill.phase
    pid = None
    while process.poll() is None and not (folder / "done.json").exists():
        pid = working_on(folder, process)
        if pid and (kill.step is None or steps_done(folder) >= kill.step):
            time.sleep(kill.delay)
            break
        time.sleep(0.01)
    hit = pid is not None and process.poll() is None and not (folder / "done.json").exists()
    if kill.victim in ("orchestrator", "group"):
        process.kill()
    if pid and kill.victim in ("phase", "group"):
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            hit = False
    output, _ = process.communicate(timeout=120)
    return hit, output


@pytest.mark.slow
def test_killed_runs_end_in_what_an_uninterrupted_one_gives(tmp_path: Path) -> None:
    models = build_models(tmp_path / "models")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    undisturbed = subprocess.run(
        [*COEVOLVE, str(write_options(tmp_path / "whole.yaml", tiny_options(whole, models)))],
        env=environment(), capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert undisturbed.returncode == 0, undisturbed.stdout + undisturbed.stderr
    expected = results(whole)
    check_that_it_can_tell(expected)

    durations = {phase: read_json(whole / phase / "done.json")["seconds"] for phase in PHASES}
    config = write_options(tmp_path / "killed.yaml", tiny_options(killed, models))
    hits = []
    for kill in kills(durations, seed=20_260_720):
        hit, output = carry_out(kill, config, killed)
        hits += [kill] if hit else []
        assert "Traceback" not in output.split("Last lines of")[0], output
    assert len(hits) >= 10, hits
    assert {kill.victim for kill in hits} == set(VICTIMS)
    assert {Path(kill.phase).name for kill in hits} == set(KINDS)

    last = start(config)
    output, _ = last.communicate(timeout=400)
    assert last.returncode == 0, output
    found = results(killed)
    assert found.keys() == expected.keys()
    for name in expected:
        assert found[name] == expected[name], name


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("mounting a small file system is not allowed here; the stand-in phases test the message")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.slow
def test_a_disk_that_fills_up_in_the_middle_is_said_and_costs_one_phase(tmp_path: Path, small_disk: Path) -> None:
    run, filler = small_disk / "run", small_disk / "filler"
    options = tiny_options(run, build_models(tmp_path / "models"), rounds=1)
    config = write_options(tmp_path / "run.yaml", options)
    process = start(config)
    while process.poll() is None and steps_done(run / "round-01/train-generator") < 0:
        time.sleep(0.01)
    with contextlib.suppress(OSError):  # where the run takes some of it meanwhile: full is full
        filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - 100_000))
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "error: round 1 train-generator failed with exit code 1: the disk of" in output
    assert "is full; make room; complete phases are kept; the same command goes on from here" in output
    filler.unlink()
    last = start(config)
    output, _ = last.communicate(timeout=200)
    assert last.returncode == 0, output
    assert "1 of 3 phases complete" in output


def check_that_it_can_tell(expected: dict[str, Any]) -> None:
    """The comparison means something: every training moved its model, and judges did not say the same of everything."""
    models = [digest for name, digest in expected.items() if name.endswith("model")]
    assert len(set(models)) == 4
    scores = [row["scores"] for name, rows in expected.items() if name.endswith("groups.jsonl") for row in rows]
    assert any(len(set(group)) > 1 for group in scores if group)
    assert len(expected) == 2 + 4 + 8 + 6  # responses, models, records, done
