"""Ranked anchors, prompts and response sets in JSONL files: read, check, write."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any

from openrlhf_dynamicrubric.errors import DataError, shown
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
        DataError: no such file, or a line that is not a JSON object (or holds NaN, or a key twice, which JSON does not know);
            the message names file and line.
    """
    path = data_path(path)
    if not path.is_file():
        raise DataError(f"{path} is not a file")
    with path.open("rb") as file:  # by b"\n" alone: U+2028 inside a string does not end a line
        for number, line in enumerate(file, start=1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if not text:
                    continue
                row = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_repeated_keys)
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
    for number, row in islice(read_rows(path), limit):
        where = f"{data_path(path)}, line {number}"
        check_prompt(row.get("prompt"), where)
        check_anchors(row.get("anchors"), where, minimum=minimum)
        rows.append({**row, "id": _id(row, number)})
    if not rows:
        raise DataError(f"{data_path(path)} has no rows")
    return rows


def read_prompts(path: str | Path, *, limit: int | None = None) -> list[dict[str, Any]]:
    """Prompts for the policy: `prompt` (text, or chat turns), optionally `id`; other keys are kept.

    Raises:
        DataError: see `read_anchors`.
    """
    rows = []
    for number, row in islice(read_rows(path), limit):
        check_prompt(row.get("prompt"), f"{data_path(path)}, line {number}")
        rows.append({**row, "id": _id(row, number)})
    if not rows:
        raise DataError(f"{data_path(path)} has no rows")
    return rows


def read_response_sets(path: str | Path, *, minimum_anchors: int = 0) -> list[ResponseSet]:
    """Response sets: `prompt`, `responses` (K >= 2 texts), optionally `anchors` (best first) and `id`.

    A score says something beside another one only, so that a single response is refused.

    Args:
        path: the file.
        minimum_anchors: fewest anchors a row must have.

    Raises:
        DataError: see `read_anchors`.
    """
    sets = []
    for number, row in read_rows(path):
        where = f"{data_path(path)}, line {number}"
        check_prompt(row.get("prompt"), where)
        check_texts(row.get("responses"), "responses", where, minimum=2)
        anchors = [] if row.get("anchors") is None else row["anchors"]
        check_anchors(anchors, where, minimum=minimum_anchors)
        sets.append(ResponseSet(row["prompt"], tuple(row["responses"]), tuple(anchors), _id(row, number)))
    if not sets:
        raise DataError(f"{data_path(path)} has no rows")
    return sets


def check_prompt(prompt: Any, where: str) -> Prompt:
    """The prompt, if it is text that is not blank, or chat turns with role and content of which one is not blank.

    Raises:
        DataError: it is neither; the message starts with `where`.
    """
    if isinstance(prompt, str) and prompt.strip():
        return prompt
    if isinstance(prompt, Sequence) and not isinstance(prompt, str) and all(map(_is_turn, prompt)):
        contents = (turn.get("content") for turn in prompt)
        if any(content.strip() if isinstance(content, str) else content for content in contents):
            return prompt
    raise DataError(
        f"{where}: prompt must be text, or a list of turns like {{'role': 'user', 'content': '...'}}, got {shown(prompt)}"
    )


def check_texts(texts: Any, name: str, where: str, *, minimum: int) -> None:
    """Nothing, if `texts` is a list of at least `minimum` strings.

    Raises:
        DataError: it is not; the message starts with `where`.
    """
    if not isinstance(texts, list) or len(texts) < minimum:
        found = f"{len(texts)}" if isinstance(texts, list) else shown(texts)
        raise DataError(f"{where}: {name} must be a list of at least {minimum} texts, got {found}")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"{where}: {name}[{index}] must be text, got {shown(text)}")


def check_anchors(anchors: Any, where: str, *, minimum: int) -> None:
    """Nothing, if `anchors` is a list of at least `minimum` strings, all different.

    Raises:
        DataError: it is not; the message starts with `where`.
    """
    check_texts(anchors, "anchors", where, minimum=minimum)
    first_at: dict[str, int] = {}
    for index, anchor in enumerate(anchors):
        if first_at.setdefault(anchor, index) < index:
            raise DataError(
                f"{where}: anchors[{first_at[anchor]}] and anchors[{index}] are the same text, so their order means nothing; "
                "keep one of them"
            )


def _id(row: Mapping[str, Any], number: int) -> str:
    return str(number if row.get("id") is None else row["id"])


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number that JSON knows")


def _no_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {shown(key)} stands twice in one object")
        found[key] = value
    return found


def _is_turn(turn: Any) -> bool:
    if not isinstance(turn, Mapping) or not isinstance(turn.get("role"), str):
        return False
    return isinstance(turn.get("content"), str | list) or bool(turn.get("tool_calls"))
