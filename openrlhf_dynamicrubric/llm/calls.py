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

    @property
    def abandoned(self) -> bool:
        """Nobody waits for it any more."""
        return self.answer.done()


@dataclass(eq=False)
class CallQueue(Generic[Request]):
    """Waits until no further call is about to come, then lets the worker have all of them at once.

    Calls that come while the worker is busy are handed over together when it is free. Any number of event loops may ask.

    Args:
        handle: works on calls, on the worker thread, and answers each through `resolve`.
        device: whose worker does it.
    """

    handle: Callable[[list[Call[Request]]], None]
    device: str
    _waiting: list[Call[Request]] = field(default_factory=list)
    _arrivals: int = 0
    _handed_over: bool = False
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
        try:
            await self._until_quiet()
            self._hand_over()
            return await call.answer
        finally:
            call.answer.cancel()  # no effect on one that is answered

    async def _until_quiet(self) -> None:
        seen = -1
        while seen != self._arrivals:
            seen = self._arrivals
            for _ in range(_QUIET_TURNS):
                await asyncio.sleep(0)

    def _hand_over(self) -> None:
        with self._guard:
            if self._waiting and not self._handed_over:
                self._handed_over = True
                worker(self.device).submit(self._work)

    def _work(self) -> None:
        with self._guard:
            calls, self._waiting = [call for call in self._waiting if not call.abandoned], []
            self._handed_over = False
        if not calls:
            return
        try:
            self.handle(calls)
        except BaseException as error:
            resolve((call, _raisable(error)) for call in calls)  # whatever it is, no caller may wait for ever
            raise
        resolve((call, RuntimeError("the call was not answered")) for call in calls)


def _raisable(error: BaseException) -> Exception:
    """The error, or one in its place that a future takes and that does not end the caller's loop."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    stopped = RuntimeError(f"the worker was stopped by {type(error).__name__}")
    stopped.__cause__ = error
    return stopped


def resolve(answers: Iterable[tuple[Call[Any], Any]]) -> None:
    """Gives calls their answers, or raises them where they are exceptions; from any thread; the first answer counts.

    Callers of one loop wake in one turn, so that what they ask next comes together too.
    """
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for call, answer in answers:
        by_loop.setdefault(call.answer.get_loop(), []).append((call.answer, answer))
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
