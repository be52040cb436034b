from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from openrlhf_dynamicrubric import processes
from openrlhf_dynamicrubric.errors import PhaseError
from openrlhf_dynamicrubric.files import locked


def test_output_goes_to_the_log_and_the_exit_code_comes_back(tmp_path: Path) -> None:
    with (tmp_path / "log.txt").open("ab") as log:
        process = processes.start([sys.executable, "-c", "import sys; print('out'); sys.exit('err')"], log)
        assert process.wait(20) == 1
    assert (tmp_path / "log.txt").read_text() == "out\nerr\n"


def test_a_process_that_ignores_terms_is_killed_with_its_group(tmp_path: Path) -> None:
    code = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""
    path = tmp_path / "log.txt"
    with path.open("ab") as log:
        process = processes.start([sys.executable, "-c", code], log)
    while not path.read_text().endswith("\n"):
        time.sleep(0.02)
    time.sleep(0.3)
    processes.stop(process, grace=0.5)
    assert process.returncode == -signal.SIGKILL
    child = int(path.read_text())
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}").exists() and "State:\tZ" not in Path(f"/proc/{child}/status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_by_hand_a_phase_follows_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(processes.LEADER, raising=False)
    processes.follow_leader()


def test_a_phase_whose_leader_has_gone_does_not_begin() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    done = subprocess.run(
        [sys.executable, "-m", "openrlhf_dynamicrubric", "sample", "--help"],
        env={**os.environ, processes.LEADER: str(gone.pid)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == f"the run's orchestrator (process {gone.pid}) has gone\n"


def test_the_first_rank_alone_holds_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / ".lock"
    with processes.sole_worker(lock):
        assert not processes.wait_until_free(lock, patience=0.3)
        with (
            pytest.raises(PhaseError, match=rf"another process is at work in {tmp_path}; wait for it"),
            processes.sole_worker(lock),
        ):
            pass
        monkeypatch.setenv("RANK", "1")
        with processes.sole_worker(lock):
            pass
    assert processes.wait_until_free(lock, patience=0.0)
    with locked(lock) as free:
        assert free
