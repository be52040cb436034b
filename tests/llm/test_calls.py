"""Calls come together, answers and errors reach every caller."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from openrlhf_dynamicrubric.llm.calls import Call, CallQueue, resolve, worker


def queue(handle: Callable[[list[Call[int]]], None], device: str = "test") -> CallQueue[int]:
    return CallQueue(handle, device)


def doubling(sizes: list[int]) -> Callable[[list[Call[int]]], None]:
    def handle(calls: list[Call[int]]) -> None:
        sizes.append(len(calls))
        resolve((call, 2 * call.request) for call in calls)

    return handle


def test_calls_of_one_moment_are_handed_over_together() -> None:
    sizes: list[int] = []
    calls = queue(doubling(sizes))

    async def nested(number: int) -> int:
        for _ in range(number % 4):  # some callers get here a few turns of the loop later
            await asyncio.sleep(0)
        return await calls.ask(number)

    async def main() -> list[int]:
        return list(await asyncio.gather(*(nested(number) for number in range(50))))

    assert asyncio.run(main()) == [2 * number for number in range(50)]
    assert sizes == [50]


def test_what_follows_an_answer_comes_together_too() -> None:
    sizes: list[int] = []
    calls = queue(doubling(sizes))

    async def twice(number: int) -> int:
        return await calls.ask(await calls.ask(number))

    async def main() -> list[int]:
        return list(await asyncio.gather(*(twice(number) for number in range(20))))

    assert asyncio.run(main()) == [4 * number for number in range(20)]
    assert sizes == [20, 20]


def test_calls_that_come_while_the_worker_is_busy_wait_and_go_together() -> None:
    sizes: list[int] = []
    busy, free = threading.Event(), threading.Event()

    def handle(calls: list[Call[int]]) -> None:
        busy.set()
        free.wait(10)
        doubling(sizes)(calls)

    calls = queue(handle)

    async def main() -> list[int]:
        first = asyncio.create_task(calls.ask(1))
        while not busy.is_set():
            await asyncio.sleep(0.001)
        others = []
        for number in (2, 3, 4):
            others.append(asyncio.create_task(calls.ask(number)))
            await asyncio.sleep(0.01)
        free.set()
        return list(await asyncio.gather(first, *others))

    assert asyncio.run(main()) == [2, 4, 6, 8]
    assert sizes == [1, 3]


def test_the_loop_stays_free() -> None:
    def handle(calls: list[Call[int]]) -> None:
        time.sleep(0.3)
        resolve((call, None) for call in calls)

    calls = queue(handle)

    async def main() -> int:
        task = asyncio.create_task(calls.ask(1))
        turns = 0
        while not task.done():
            await asyncio.sleep(0.001)
            turns += 1
        return turns

    assert asyncio.run(main()) > 20


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ZeroDivisionError("a bug"), ZeroDivisionError),
        (MemoryError(), MemoryError),
        (StopIteration(), RuntimeError),
        (KeyboardInterrupt(), RuntimeError),
        (SystemExit(), RuntimeError),
    ],
)
def test_a_bug_reaches_every_caller_and_the_next_call_works(error: BaseException, raised: type[Exception]) -> None:
    broken = True

    def handle(calls: list[Call[int]]) -> None:
        if broken:
            raise error
        resolve((call, call.request) for call in calls)

    calls = queue(handle)

    async def main() -> None:
        nonlocal broken
        answers = await asyncio.gather(*(calls.ask(number) for number in range(3)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [raised] * 3
        broken = False
        assert await calls.ask(5) == 5

    asyncio.run(main())


def test_a_call_that_is_not_answered_does_not_hang() -> None:
    with pytest.raises(RuntimeError, match="not answered"):
        asyncio.run(queue(lambda calls: None).ask(1))


def test_a_caller_that_left_is_not_worked_for() -> None:
    seen: list[int] = []
    busy, free = threading.Event(), threading.Event()

    def handle(calls: list[Call[int]]) -> None:
        busy.set()
        free.wait(10)
        seen.extend(call.request for call in calls)
        resolve((call, call.request) for call in calls)

    calls = queue(handle)

    async def main() -> None:
        first = asyncio.create_task(calls.ask(1))
        while not busy.is_set():
            await asyncio.sleep(0.001)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(calls.ask(2), 0.05)
        third = asyncio.create_task(calls.ask(3))
        await asyncio.sleep(0.05)
        free.set()
        assert await asyncio.gather(first, third) == [1, 3]

    asyncio.run(main())
    assert seen == [1, 3]


def test_a_call_knows_that_nobody_waits() -> None:
    left = threading.Event()
    noticed = []

    def handle(calls: list[Call[int]]) -> None:
        left.wait(10)
        noticed.extend(call.abandoned for call in calls)

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(queue(handle).ask(1), 0.05)
        left.set()

    asyncio.run(main())
    worker("test").submit(lambda: None).result()
    assert noticed == [True]


def test_several_loops_ask_at_once() -> None:
    calls = queue(doubling([]))
    answers: dict[int, list[int]] = {}

    async def some(first: int) -> list[int]:
        return list(await asyncio.gather(*(calls.ask(first + number) for number in range(10))))

    def ask(first: int) -> None:
        answers[first] = asyncio.run(some(first))

    threads = [threading.Thread(target=ask, args=(100 * number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert answers == {100 * n: [2 * (100 * n + number) for number in range(10)] for n in range(5)}


def test_one_worker_a_device() -> None:
    assert worker("a") is worker("a")
    assert worker("a") is not worker("b")
