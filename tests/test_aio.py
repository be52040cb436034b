"""One loop a process, for callers with a loop of their own, without one, after a fork, and on their way out."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from openrlhf_dynamicrubric import aio


async def loop_and_thread() -> tuple[asyncio.AbstractEventLoop, str]:
    await asyncio.sleep(0)
    return asyncio.get_running_loop(), threading.current_thread().name


def test_always_the_same_loop_on_its_own_thread() -> None:
    first, name = aio.run(loop_and_thread())
    second, _ = aio.run(loop_and_thread())
    assert first is second
    assert name == "dynamicrubric"
    assert threading.current_thread().name != name


def test_from_inside_a_running_loop() -> None:
    async def outer() -> Any:
        return aio.run(loop_and_thread())[0], asyncio.get_running_loop()

    inner, own = asyncio.run(outer())
    assert inner is aio.run(loop_and_thread())[0]
    assert inner is not own


def test_from_many_threads_at_once() -> None:
    async def together() -> asyncio.AbstractEventLoop:
        await asyncio.sleep(0.05)
        return asyncio.get_running_loop()

    loops: list[Any] = []
    threads = [threading.Thread(target=lambda: loops.append(aio.run(together()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert len(loops) == 8
    assert len(set(map(id, loops))) == 1


def test_exceptions_come_through_and_the_loop_lives_on() -> None:
    async def fail(error: BaseException) -> None:
        raise error

    for error in (ValueError("x"), KeyboardInterrupt("y"), SystemExit(3), TimeoutError("z")):
        with pytest.raises(type(error)) as caught:
            aio.run(fail(error))
        assert caught.value.args == error.args
        assert aio.run(asyncio.sleep(0, "alive")) == "alive"
    with pytest.raises(concurrent.futures.CancelledError):
        aio.run(fail(asyncio.CancelledError()))
    assert aio.run(asyncio.sleep(0, "alive")) == "alive"


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_task_that_stops_the_loop_leaves_nobody_waiting(kind: type[BaseException]) -> None:
    async def stop() -> None:
        await asyncio.sleep(0.01)
        raise kind

    async def main() -> None:
        await asyncio.gather(stop(), asyncio.sleep(0.05))

    with pytest.raises(kind):
        aio.run(main())
    assert aio.run(asyncio.sleep(0, "alive")) == "alive"


def test_from_its_own_loop_it_is_an_error_and_not_a_deadlock() -> None:
    async def inner() -> int:
        return 1

    async def outer() -> int:
        return aio.run(inner())

    with pytest.raises(RuntimeError, match="await there instead"):
        aio.run(outer())


def test_futures_outlive_a_call() -> None:
    box: dict[str, asyncio.Future[int]] = {}

    async def make() -> None:
        box["future"] = asyncio.get_running_loop().create_future()

    async def settle() -> None:
        box["future"].set_result(7)

    async def wait() -> int:
        return await box["future"]

    aio.run(make())
    aio.run(settle())
    assert aio.run(wait()) == 7


def test_after_a_fork_the_child_has_a_loop_of_its_own() -> None:
    parents = aio.run(loop_and_thread())[0]
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            own = aio.run(loop_and_thread())[0]
            os.write(write, b"own" if own is not parents else b"parents")
        finally:
            os._exit(0)
    os.close(write)
    answer = _read_or_kill(read, pid)
    assert answer == b"own"
    assert aio.run(loop_and_thread())[0] is parents


def test_a_fork_while_another_thread_starts_the_loop() -> None:
    """Whoever held the lock at the fork is not there to release it in the child."""
    read, write = os.pipe()
    with aio._background._lock:
        pid = os.fork()
        if pid == 0:
            try:
                os.write(write, aio.run(asyncio.sleep(0, b"alive")))
            finally:
                os._exit(0)
    os.close(write)
    assert _read_or_kill(read, pid) == b"alive"


def _read_or_kill(read: int, pid: int) -> bytes:
    timer = threading.Timer(20, os.kill, (pid, signal.SIGKILL))
    timer.start()
    try:
        return os.read(read, 100)
    finally:
        timer.cancel()
        os.waitpid(pid, 0)
        os.close(read)


def test_ctrl_c_stops_the_work() -> None:
    stopped = threading.Event()

    async def work() -> None:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.set()
            raise

    with pytest.raises(KeyboardInterrupt):
        aio.run(work())
    assert stopped.wait(timeout=20)
    assert aio.run(asyncio.sleep(0, "alive")) == "alive"


def test_the_loop_does_not_keep_a_process_from_ending() -> None:
    script = (
        "import asyncio\n"
        "from openrlhf_dynamicrubric import aio\n"
        "async def work(): asyncio.ensure_future(asyncio.sleep(600))\n"
        "aio.run(work())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "")
