"""Calls from event loops, collected and handed to one worker thread together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

_QUIET_TURNS = 8
"""Turns of the loop without a new call after which nothing else is about to ask."""

Request = TypeVar("Request")

_lock = threading.Lock()
_workers: dict[tuple[int, str], ThreadPoolExecutor] = {}


def worker(device: str) -> ThreadPoolExecutor:
    """The one thread of this process that works on a device, so that models on it take turns."""
    with _lock:
        key = (os.getpid(), device)  # threads do not survive a fork
        if key not in _workers:
            _workers[key] = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"dynamicrubric-{device}")
        return _workers[key]


@dataclass(slots=True, eq=False)
class Call(Generic[Request]):
    """What one caller asks, and waits for."""

    request: Request
    answer: asyncio.Future[Any]
    given: Any = None

    @property
    def abandoned(self) -> bool:
        """Nobody waits for it any more."""
        return self.answer.done()


@dataclass(eq=False)
class CallQueue(Generic[Request]):
    """Waits until no further call is about to come, then lets the worker have all of them at once.

    Calls that come while the worker is busy are handed over together when it is free. Any number of event loops may ask.

    Args:
        handle: works on calls, on the worker thread, and gives each its answer through `resolve`.
        device: whose worker does it.
    """

    handle: Callable[[list[Call[Request]]], None]
    device: str
    _waiting: list[Call[Request]] = field(default_factory=list)
    _arrivals: int = 0
    _collector: asyncio.Task[None] | None = None
    _guard: threading.Lock = field(default_factory=threading.Lock)

    async def ask(self, request: Request) -> Any:
        """The answer to a request.

        Raises:
            Exception: what `handle` raised or gave as the answer.
        """
        call = Call(request, asyncio.get_running_loop().create_future())
        with self._guard:
            self._waiting.append(call)
            self._arrivals += 1
            if self._collector is None:
                self._collector = asyncio.create_task(self._collect())
        try:
            return await call.answer
        finally:
            call.answer.cancel()  # no effect on one that is answered

    async def _collect(self) -> None:
        try:
            seen = -1
            while seen != self._arrivals:
                seen = self._arrivals
                for _ in range(_QUIET_TURNS):
                    await asyncio.sleep(0)
        finally:  # also where the loop is being closed: a call of another loop may wait as well
            with self._guard:
                self._collector = None
                worker(self.device).submit(self._work)

    def _work(self) -> None:
        with self._guard:
            calls, self._waiting = [call for call in self._waiting if not call.abandoned], []
        if not calls:
            return
        try:
            self.handle(calls)
            resolve((call, RuntimeError("the call was not answered")) for call in calls)
        except BaseException as error:
            resolve((call, _raisable(error)) for call in calls)  # whatever it is, no caller may wait for ever
            raise
        finally:
            _deliver(calls)


def _raisable(error: BaseException) -> Exception:
    """The error, or one in its place that a future takes and that does not end the caller's loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    stopped = RuntimeError(f"the worker was stopped by {type(error).__name__}")
    stopped.__cause__ = error
    return stopped


def resolve(answers: Iterable[tuple[Call[Any], Any]]) -> None:
    """Gives calls their answers, or the exceptions that they raise; the first one counts.

    Callers get them when all calls that were handed over together are done, so that what they ask next comes together
    too: batches, and with them the last bits of a result, do not hang on how fast a thread was.
    """
    for call, answer in answers:
        if call.given is None:
            call.given = answer


def _deliver(calls: Sequence[Call[Any]]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for call in calls:
        by_loop.setdefault(call.answer.get_loop(), []).append((call.answer, call.given))
    for loop, pairs in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits
            loop.call_soon_threadsafe(_set, pairs)


def _set(pairs: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, answer in pairs:
        if future.done():
            continue
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(answer)
