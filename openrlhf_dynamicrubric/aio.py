"""One background event loop a process, for callers that are not asynchronous themselves."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result, from a loop on a thread of its own: also inside a running loop, and after a fork.

    Always the same loop in one process, so that what belongs to a loop (futures, connections) outlives a call.

    Args:
        coroutine: what to run.

    Returns:
        Its result.

    Raises:
        Exception: whatever the coroutine raises.
    """
    future = asyncio.run_coroutine_threadsafe(coroutine, _loop())
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise


def _loop() -> asyncio.AbstractEventLoop:
    pid = os.getpid()
    with _lock:
        if pid not in _loops:
            _loops.clear()  # loops of a parent process have no thread here
            _loops[pid] = loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="dynamicrubric", daemon=True).start()
        return _loops[pid]
