"""Files are whole, old or new, whatever happens to the process or the disk."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from openrlhf_dynamicrubric import files
from openrlhf_dynamicrubric.files import append_lines, json_line, locked, read_lines, write_atomic


@contextmanager
def child(work: Callable[[], None]) -> Iterator[int]:
    """A forked process that does the work; it is killed and reaped in the end."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file of this process can grow beyond `size` bytes: a disk that fills up in the middle of a write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def full_disk(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


# Whole files


def test_write_and_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "state.json"
    write_atomic(path, "one\r\ntwo\u2028é\n")
    assert path.read_bytes() == "one\r\ntwo\u2028é\n".encode()
    write_atomic(path, "")
    assert path.read_bytes() == b""
    write_atomic(path, "a\ud800b")
    assert path.read_bytes() == b"a?b"
    assert [entry.name for entry in path.parent.iterdir()] == ["state.json"]


def test_killed_writers_leave_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path, dice = tmp_path / "state.json", random.Random(5)

    def content(number: int) -> str:
        return json.dumps({"number": number, "filling": [number] * 40_000, "end": number})

    def write() -> None:
        number = 1
        while True:
            write_atomic(path, content(number))
            number += 1

    write_atomic(path, content(0))
    seen = set()
    for _ in range(20):
        before = path.read_text()
        with child(write):
            wait_until(lambda before=before: path.read_text() != before)
            time.sleep(dice.random() * 0.02)
        state = json.loads(path.read_text())
        assert path.read_text() == content(state["number"])
        seen.add(state["number"])
    assert len(seen) > 1


@pytest.mark.parametrize("when", ["write", "fsync"])
def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    path = tmp_path / "state.json"
    write_atomic(path, "before")
    if when == "fsync":
        monkeypatch.setattr(files.os, "fsync", full_disk)
        with pytest.raises(OSError, match="No space left"):
            write_atomic(path, "after" * 10_000)
    else:
        with file_size_limit(10_000), pytest.raises(OSError, match="File too large"):
            write_atomic(path, "after" * 10_000)
    assert path.read_text() == "before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]


def test_a_folder_that_cannot_be_made_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="file"):
        write_atomic(tmp_path / "file" / "state.json", "x")


# Lines


def test_lines_are_lines_for_every_reader() -> None:
    text = "a\nb\rc\x85d\u2028e\u2029f\x0b\x0c\x1c\x1d\x1e"
    line = json_line({"text": text})
    assert line.splitlines() == [line.rstrip("\n")]
    assert json.loads(line) == {"text": text}
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_line({"text": float("nan")})


def test_append_and_read(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "rows.jsonl"
    append_lines(path, [{"n": 0}, {"n": 1, "text": "é\u2028\ud800"}])
    append_lines(path, [])
    append_lines(path, iter([[2]]))
    assert list(read_lines(path)) == [{"n": 0}, {"n": 1, "text": "é\u2028?"}, [2]]


@pytest.mark.parametrize("unfinished", [b"{", b'{"n": 1}', b"\xc3", b"x" * 65_535, b"x" * 65_536, b"x" * 200_000])
@pytest.mark.parametrize("whole", [b"", b'{"n": 0}\n', b'{"n": 0, "m": "' + b"y" * 70_000 + b'"}\n'])
def test_an_unfinished_line_is_not_read_and_the_next_append_takes_it_away(
    tmp_path: Path, whole: bytes, unfinished: bytes
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(whole + unfinished)
    before = list(read_lines(path))
    assert len(before) == whole.count(b"\n")
    append_lines(path, [{"n": 7}])
    assert path.read_bytes() == whole + b'{"n": 7}\n'
    assert list(read_lines(path)) == [*before, {"n": 7}]


def test_killed_appenders_leave_whole_rows_in_order(tmp_path: Path) -> None:
    path, dice = tmp_path / "rows.jsonl", random.Random(6)

    def append() -> None:
        number = sum(1 for _ in read_lines(path)) if path.exists() else 0
        while True:
            append_lines(path, [{"n": number + more, "filling": "x" * 20_000} for more in range(3)])
            number += 3

    for _ in range(20):
        size = path.stat().st_size if path.exists() else 0
        with child(append):
            wait_until(lambda size=size: path.exists() and path.stat().st_size > size)
            time.sleep(dice.random() * 0.02)
        numbers = [row["n"] for row in read_lines(path)]
        assert numbers == list(range(len(numbers)))
    assert len(numbers) >= 20


@pytest.mark.parametrize("room", [0, 1, 100, 20_100])
def test_a_disk_that_fills_up_keeps_none_of_the_rows(tmp_path: Path, room: int) -> None:
    path = tmp_path / "rows.jsonl"
    append_lines(path, [{"n": 0}])
    before = path.read_bytes()
    with file_size_limit(len(before) + room), pytest.raises(OSError, match="File too large"):
        append_lines(path, [{"n": number, "filling": "x" * 20_000} for number in (1, 2)])
    assert path.read_bytes() == before
    append_lines(path, [{"n": 1}])
    assert [row["n"] for row in read_lines(path)] == [0, 1]


def test_a_disk_that_cannot_sync_keeps_none_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    append_lines(path, [{"n": 0}])
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full_disk)
        with pytest.raises(OSError, match="No space left"):
            append_lines(path, [{"n": 1}])
    assert [row["n"] for row in read_lines(path)] == [0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_the_full_device_says_so() -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        append_lines(Path("/dev/full"), [{"n": 0}])
    assert caught.value.errno == errno.ENOSPC


# Locks


def test_one_process_holds_the_lock_until_it_is_killed(tmp_path: Path) -> None:
    path, ready = tmp_path / "run" / "lock", tmp_path / "ready"

    def hold() -> None:
        with locked(path) as held:
            ready.write_text(str(held))
            time.sleep(60)

    with child(hold):
        wait_until(lambda: ready.exists() and ready.read_text() != "")
        assert ready.read_text() == "True"
        for _ in range(2):
            with locked(path) as held:
                assert not held
    with locked(path) as held:
        assert held


def test_the_lock_ends_with_its_block(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path) as first, locked(path) as second:
        assert (first, second) == (True, False)

    def leave() -> None:
        with locked(path):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave()
    with locked(path) as again:
        assert again
