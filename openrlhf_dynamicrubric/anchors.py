"""Ranked anchors, prompts and response sets in JSONL files: read, check, write."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from openrlhf_dynamicrubric.errors import DataError
from openrlhf_dynamicrubric.types import Prompt, ResponseSet

DEMO = "demo"
"""Name that stands for the anchors shipped with the package, wherever a file of anchors or prompts is asked for."""


def data_path(name: str | Path) -> Path:
    """The file that an option names; `demo` is the package's own."""
    if str(name) == DEMO:
        return Path(str(resources.files("openrlhf_dynamicrubric").joinpath("data", "demo_anchors.jsonl")))
    return Path(name)


def read_rows(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers and JSON objects of a file; blank lines are passed over.

    Raises:
        DataError: no such file, or a line that is not a JSON object; the message names file and line.
    """
    path = data_path(path)
    if not path.is_file():
        raise DataError(f"{path} is not a file")
    with path.open("rb") as file:  # by b"\n" alone: U+2028 inside a string does not end a line
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}, line {number}: not JSON: {error}") from None
            if not isinstance(row, dict):
                raise DataError(f"{path}, line {number}: expected an object, got {type(row).__name__}")
            yield number, row


def read_anchors(path: str | Path, *, minimum: int = 2, limit: int | None = None) -> list[dict[str, Any]]:
    """Prompts with ranked anchors.

    One object a line: `prompt` (text, or chat turns), `anchors` (texts, best first, distinct), optionally `id`.
    Other keys are kept.

    Args:
        path: the file, or `demo`.
        minimum: fewest anchors a prompt must have.
        limit: read only the first rows.

    Returns:
        The rows, each with an `id`.

    Raises:
        DataError: a row is not of this form; the message names file, line and what to mend.
    """
    rows = []
    for number, row in read_rows(path):
        if limit is not None and len(rows) == limit:
            break
        where = f"{data_path(path)}, line {number}"
        check_prompt(row.get("prompt"), where)
        check_texts(row.get("anchors"), "anchors", where, minimum=minimum)
        if len(set(row["anchors"])) < len(row["anchors"]):
            raise DataError(f"{where}: two anchors are the same text, so their order means nothing; keep one of them")
        rows.append({**row, "id": str(row.get("id", number))})
    if not rows:
        raise DataError(f"{data_path(path)} has no rows")
    return rows


def read_prompts(path: str | Path, *, limit: int | None = None) -> list[dict[str, Any]]:
    """Prompts for the policy: `prompt` (text, or chat turns), optionally `id`; other keys are kept.

    Raises:
        DataError: see `read_anchors`.
    """
    rows = []
    for number, row in read_rows(path):
        if limit is not None and len(rows) == limit:
            break
        check_prompt(row.get("prompt"), f"{data_path(path)}, line {number}")
        rows.append({**row, "id": str(row.get("id", number))})
    if not rows:
        raise DataError(f"{data_path(path)} has no rows")
    return rows


def read_response_sets(path: str | Path, *, minimum_anchors: int = 0) -> list[ResponseSet]:
    """Response sets: `prompt`, `responses` (K texts), optionally `anchors` (best first) and `id`.

    Args:
        path: the file.
        minimum_anchors: fewest anchors a row must have.

    Raises:
        DataError: see `read_anchors`.
    """
    sets = []
    for number, row in read_rows(path):
        where = f"{path}, line {number}"
        check_prompt(row.get("prompt"), where)
        check_texts(row.get("responses"), "responses", where, minimum=1)
        anchors = row.get("anchors") or []
        check_texts(anchors, "anchors", where, minimum=minimum_anchors)
        sets.append(ResponseSet(row["prompt"], tuple(row["responses"]), tuple(anchors), str(row.get("id", number))))
    if not sets:
        raise DataError(f"{path} has no rows")
    return sets


def check_prompt(prompt: Any, where: str) -> Prompt:
    """The prompt, if it is text that is not blank, or chat turns with role and content.

    Raises:
        DataError: it is neither; the message starts with `where`.
    """
    if isinstance(prompt, str) and prompt.strip():
        return prompt
    if isinstance(prompt, Sequence) and not isinstance(prompt, str) and prompt and all(map(_is_turn, prompt)):
        return prompt
    raise DataError(
        f"{where}: prompt must be text, or a list of turns like {{'role': 'user', 'content': '...'}}, got {_show(prompt)}"
    )


def check_texts(texts: Any, name: str, where: str, *, minimum: int) -> None:
    """Nothing, if `texts` is a list of at least `minimum` strings.

    Raises:
        DataError: it is not; the message starts with `where`.
    """
    if not isinstance(texts, list) or len(texts) < minimum:
        found = f"{len(texts)}" if isinstance(texts, list) else _show(texts)
        raise DataError(f"{where}: {name} must be a list of at least {minimum} texts, got {found}")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"{where}: {name}[{index}] must be text, got {_show(text)}")


def _is_turn(turn: Any) -> bool:
    return isinstance(turn, Mapping) and isinstance(turn.get("role"), str) and "content" in turn


def _show(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
