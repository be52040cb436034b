"""Processes that end with the one that started them, and folders that one process at a time works in."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from openrlhf_dynamicrubric.errors import PhaseError
from openrlhf_dynamicrubric.files import locked

LEADER = "_DYNAMICRUBRIC_LEADER"
"""Environment variable with the process id of the orchestrator; phases that it starts end when it does."""

STARTED = time.monotonic()
"""When this process began, within the time that it takes to load this file."""

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def start(command: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """The command in a process group of its own, its output in `log`; on Linux it gets SIGTERM when this process dies.

    A launcher (torchrun, accelerate) takes its workers with it on SIGTERM, and each worker calls `follow_leader` besides.

    Raises:
        PhaseError: there is no such command.
    """
    leader = os.getpid()

    def die_with_leader() -> None:
        _signal_on_parents_death()
        if os.getppid() != leader:  # it died between the fork and here
            os._exit(1)

    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, LEADER: str(leader), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
            preexec_fn=die_with_leader if _libc else None,
        )
    except OSError as error:
        raise PhaseError(f"cannot start {command[0]}: {error.strerror}; check `launch` in the run's options") from None


def stop(process: subprocess.Popen[bytes], *, grace: float = 30.0) -> None:
    """The process and its group have ended: asked with SIGTERM, and made to with SIGKILL after `grace` seconds."""
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, grace)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def follow_leader() -> None:
    """This process ends when the one above it does, if an orchestrator started it; by hand nothing changes.

    Raises:
        SystemExit: the orchestrator has gone already.
    """
    leader = os.environ.get(LEADER)
    if not leader or not _libc:
        return
    _signal_on_parents_death()
    try:
        os.kill(int(leader), 0)
    except ProcessLookupError:
        raise SystemExit(f"the run's orchestrator (process {leader}) has gone") from None
    except PermissionError:
        pass  # it lives, under another user


def peak_memory() -> int:
    """Most memory that this process has held at once, in bytes."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main_rank() -> bool:
    """Whether this is the first process of a launch by torchrun or accelerate, or the only one; before torch is there."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def sole_worker(lock: Path) -> Iterator[None]:
    """A phase's folder belongs to this launch, until it ends in whatever way.

    Raises:
        PhaseError: another process works there.
    """
    if not main_rank():
        yield
        return
    with locked(lock) as free:
        if not free:
            raise PhaseError(f"another process is at work in {lock.parent}; wait for it, or end it")
        yield


def wait_until_free(lock: Path, *, patience: float) -> bool:
    """Whether nobody holds the lock, at the latest after `patience` seconds."""
    deadline = time.monotonic() + patience
    while True:
        with locked(lock) as free:
            if free:
                return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.2)


def _signal_on_parents_death() -> None:
    if _libc:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
