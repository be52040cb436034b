"""One background event loop a process, for callers that are not asynchronous themselves."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Background:
    """The loop and its thread, made when they are first asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._of_parents: list[asyncio.AbstractEventLoop] = []

    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop of this process."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_serve, args=(self._loop,), name="dynamicrubric", daemon=True).start()
            return self._loop

    def forget(self) -> None:
        """In a forked child: the loop's thread stayed with the parent, and so did whoever held the lock."""
        self._lock = threading.Lock()
        if self._loop is not None:
            self._of_parents.append(self._loop)  # kept, because closing it would reach into the parent's selector
        self._loop = None


_background = _Background()
os.register_at_fork(after_in_child=_background.forget)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result, from a loop on a thread of its own: also inside a running loop, and after a fork.

    Always the same loop in one process, so that what belongs to a loop (futures, connections) outlives a call.

    Args:
        coroutine: what to run.

    Returns:
        Its result.

    Raises:
        RuntimeError: called by something that this loop runs, which would wait for itself for ever.
        concurrent.futures.CancelledError: the coroutine was cancelled.
        BaseException: whatever else it raises.
    """
    loop = _background.loop()
    if asyncio._get_running_loop() is loop:
        coroutine.close()
        raise RuntimeError("aio.run was called inside a coroutine that aio.run runs; await there instead")
    future = asyncio.run_coroutine_threadsafe(_outcome(coroutine), loop)
    try:
        result, stop = future.result()
    finally:
        future.cancel()  # does nothing once there is a result; on Ctrl-C it stops the work
    if stop is not None:
        raise stop
    return result


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    stopped = True
    while stopped:  # a task that raises SystemExit or KeyboardInterrupt ends the loop, and others still wait in it
        try:
            loop.run_forever()
            stopped = False
        except (KeyboardInterrupt, SystemExit):
            continue


async def _outcome(coroutine: Coroutine[Any, Any, T]) -> tuple[Any, BaseException | None]:
    try:
        return await coroutine, None
    except (KeyboardInterrupt, SystemExit) as stop:  # raised here, they would end the loop's thread
        return None, stop
