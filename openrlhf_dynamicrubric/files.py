"""Files that are whole or not there: atomic writes, crash-safe appends, locks."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

_BLOCK = 65_536


def write_atomic(path: Path, text: str | Iterable[str]) -> None:
    """The file at `path` holds `text` (or its pieces in a row), or what it held before: written beside, synced, renamed.

    A lone surrogate in the text becomes "?".

    Raises:
        OSError: the disk is full, or the folder cannot be written; `path` is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with beside.open("wb") as file:
            file.writelines(piece.encode("utf-8", "replace") for piece in ([text] if isinstance(text, str) else text))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """A rename inside the folder survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def json_line(row: Any) -> str:
    """One line of JSONL, without the characters that some readers take for line ends.

    Raises:
        ValueError: a NaN or an infinity, which JSON does not know.
    """
    text = json.dumps(row, ensure_ascii=False, allow_nan=False)
    return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029").replace("\x85", "\\u0085") + "\n"


def append_lines(path: Path, rows: Iterable[Any]) -> None:
    """Rows at the end of a JSONL file, synced; a line that a crash left unfinished is taken away first.

    One process at a time: two that append at once could take each other's unfinished line away.

    Raises:
        OSError: the disk is full, say; none of the rows is kept.
        ValueError: a row holds NaN or an infinity; nothing is written.
    """
    lines = "".join(json_line(row) for row in rows).encode("utf-8", "replace")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b", buffering=0) as file:  # a buffer would try again, on closing, what has failed
        end = _drop_unfinished_line(file)
        try:
            rest = memoryview(lines)
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):  # /dev/full and the like cannot be cut
                file.truncate(end)
            raise


def read_lines(path: Path) -> Iterator[Any]:
    """The rows of a JSONL file that a crash may have cut: an unfinished last line is passed over."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)


def _drop_unfinished_line(file: FileIO) -> int:
    """Cuts the file behind its last line end, and gives the length that is left."""
    end = keep = file.seek(0, os.SEEK_END)
    while keep > 0:
        start = max(0, keep - _BLOCK)
        file.seek(start)
        line_end = file.read(keep - start).rfind(b"\n")
        if line_end >= 0:
            keep = start + line_end + 1
            break
        keep = start
    if keep < end:
        file.truncate(keep)
    return file.seek(0, os.SEEK_END)


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """A lock on `path` that ends with the process, however that ends. Gives False where another process holds it."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
