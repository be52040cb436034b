"""Files of anchors, prompts and response sets: what is wrong is named by file and line."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from openrlhf_dynamicrubric.anchors import (
    DEMO,
    check_prompt,
    data_path,
    read_anchors,
    read_prompts,
    read_response_sets,
    read_rows,
)
from openrlhf_dynamicrubric.errors import DataError
from openrlhf_dynamicrubric.types import ResponseSet

RANKED_VICUNA = Path(__file__).parents[2] / "shared/data/ranked_vicuna.jsonl"
ROW = {"prompt": "Name a fruit.", "anchors": ["An apple.", "Fruit."], "id": "f1"}


@pytest.fixture
def file(tmp_path: Path):
    def write(*lines: Any, end: str = "\n") -> Path:
        path = tmp_path / "rows.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines]
        path.write_bytes("\n".join(texts).encode() + end.encode())
        return path

    return write


def message(read: Any, path: Path, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        list(read(path, **options))
    return str(caught.value)


# Lines


def test_windows_files_and_blank_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(ROW).encode() + b"\r\n\r\n  \t\r\n" + json.dumps(ROW | {"id": 2}).encode())
    assert [(number, row["id"]) for number, row in read_rows(path)] == [(1, "f1"), (4, 2)]
    path.write_bytes(b"\xef\xbb\xbf\r\n" + json.dumps(ROW).encode())
    assert [number for number, _ in read_rows(path)] == [2]


def test_separators_inside_strings_do_not_end_a_line(file: Any) -> None:
    text = "one\u2028two\u2029three\x85four"
    path = file({"prompt": text, "anchors": [text, "b"]}, ROW)
    assert [row["prompt"] for row in read_anchors(path)] == [text, "Name a fruit."]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "line 2: not JSON: "),
        (json.dumps(ROW)[:-9], "line 2: not JSON: "),
        ("[1, 2]", "line 2: expected an object, got list"),
        ('"text"', "line 2: expected an object, got str"),
        ("null", "line 2: expected an object, got NoneType"),
        ('{"prompt": "x", "score": NaN}', "line 2: not JSON: NaN is not a number that JSON knows"),
        ('{"prompt": "x", "anchors": ["a", "b"], "prompt": "y"}', "line 2: not JSON: key 'prompt' stands twice in one object"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "line 2: not JSON: "),
        ("{" + ",".join(f'"{number}": 0' for number in range(30_000)) + ',"0": 1}', "line 2: not JSON: key '0' stands twice"),
    ],
)
def test_lines_that_are_no_objects_are_named(file: Any, line: str, expected: str) -> None:
    path = file(ROW, line)
    for read in (read_rows, read_anchors, read_prompts):
        assert message(read, path).startswith(f"{path}, {expected}")


def test_a_file_cut_in_its_last_line_is_refused(file: Any) -> None:
    whole = json.dumps(ROW)
    for cut in range(1, len(whole)):
        assert ", line 2: not JSON: " in message(read_anchors, file(ROW, whole[:cut], end=""))
    assert len(read_anchors(file(ROW, whole, end=""))) == 2


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"prompt": "\xff"}\n')
    assert message(read_rows, path).startswith(f"{path}, line 1: not JSON: 'utf-8' codec")
    path.write_bytes(json.dumps(ROW).encode("utf-16"))
    assert message(read_rows, path).startswith(f"{path}, line 1: not JSON: ")


def test_files_that_are_none(tmp_path: Path, file: Any) -> None:
    for path in (tmp_path / "absent.jsonl", tmp_path):
        for read in (read_rows, read_anchors, read_prompts, read_response_sets):
            assert message(read, path) == f"{path} is not a file"
    for empty in (file(end=""), file("", "  ", "")):
        for read in (read_anchors, read_prompts, read_response_sets):
            assert message(read, empty) == f"{empty} has no rows"


# Anchors


def test_rows_keep_their_keys_and_get_an_id(file: Any) -> None:
    rows = read_anchors(file(ROW | {"kind": "name", "score": [9.5, 2]}, ROW | {"id": 7}, {**ROW, "id": None}))
    assert rows[0] == ROW | {"kind": "name", "score": [9.5, 2]}
    assert [row["id"] for row in rows] == ["f1", "7", "3"]


def test_limit_reads_the_first_rows_only(file: Any) -> None:
    path = file(ROW, ROW | {"id": "f2"}, "broken")
    assert [row["id"] for row in read_anchors(path, limit=2)] == ["f1", "f2"]
    assert [row["id"] for row in read_prompts(path, limit=1)] == ["f1"]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"anchors": ["a", "b"]}, "prompt must be text, or a list of turns like {'role': 'user', 'content': '...'}, got None"),
        ({"prompt": " \n", "anchors": ["a", "b"]}, "prompt must be text, or a list of turns"),
        ({"prompt": 7, "anchors": ["a", "b"]}, "got 7"),
        ({"prompt": [], "anchors": ["a", "b"]}, "got []"),
        ({"prompt": ["Hi"], "anchors": ["a", "b"]}, "got ['Hi']"),
        ({"prompt": [{"content": "Hi"}], "anchors": ["a", "b"]}, "got [{'content': 'Hi'}]"),
        ({"prompt": [{"role": "user"}], "anchors": ["a", "b"]}, "got [{'role': 'user'}]"),
        ({"prompt": [{"role": "user", "content": " "}], "anchors": ["a", "b"]}, "prompt must be text"),
        ({"prompt": [{"role": 1, "content": "Hi"}], "anchors": ["a", "b"]}, "prompt must be text"),
        ({"prompt": "Hi"}, "anchors must be a list of at least 2 texts, got None"),
        ({"prompt": "Hi", "anchors": "ab"}, "anchors must be a list of at least 2 texts, got 'ab'"),
        ({"prompt": "Hi", "anchors": []}, "anchors must be a list of at least 2 texts, got 0"),
        ({"prompt": "Hi", "anchors": ["a"]}, "anchors must be a list of at least 2 texts, got 1"),
        ({"prompt": "Hi", "anchors": ["a", None]}, "anchors[1] must be text, got None"),
        ({"prompt": "Hi", "anchors": [["a"], "b"]}, "anchors[0] must be text, got ['a']"),
        (
            {"prompt": "Hi", "anchors": ["a", "b", "c", "b"]},
            "anchors[1] and anchors[3] are the same text, so their order means nothing; keep one of them",
        ),
        ({"prompt": "Hi", "anchors": ["a", "x" * 100_000, 3]}, "anchors[2] must be text, got 3"),
    ],
)
def test_rows_that_are_no_anchors_are_named(file: Any, row: dict[str, Any], expected: str) -> None:
    path = file("", ROW, row)
    found = message(read_anchors, path)
    assert found.startswith(f"{path}, line 3: ")
    assert expected in found
    assert len(found) < 400 + len(str(path))


def test_minimum_is_the_callers(file: Any) -> None:
    assert message(read_anchors, file(ROW), minimum=3).endswith("anchors must be a list of at least 3 texts, got 2")


def test_deep_values_are_shown_short() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(DataError) as caught:
        check_prompt(deep, "here")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "prompt",
    [
        [{"role": "user", "content": "Hi"}],
        [{"role": "system", "content": ""}, {"role": "user", "content": "Hi", "name": "x"}],
        [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}],
    ],
)
def test_chat_turns_are_prompts(file: Any, prompt: Any) -> None:
    path = file({"prompt": prompt, "anchors": ["a", "b"], "responses": ["c", "d"]})
    assert read_anchors(path)[0]["prompt"] == prompt
    assert read_prompts(path)[0]["prompt"] == prompt
    assert read_response_sets(path)[0].prompt == prompt


# Response sets


def test_response_sets(file: Any) -> None:
    path = file(
        {"prompt": "Hi", "responses": ["a", "a", ""]},
        {**ROW, "responses": ["c", "d"]},
        {**ROW, "responses": ["c", "d"], "id": 9},
    )
    assert read_response_sets(path) == [
        ResponseSet("Hi", ("a", "a", ""), (), "1"),
        ResponseSet("Name a fruit.", ("c", "d"), ("An apple.", "Fruit."), "f1"),
        ResponseSet("Name a fruit.", ("c", "d"), ("An apple.", "Fruit."), "9"),
    ]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "Hi"}, "responses must be a list of at least 2 texts, got None"),
        ({"prompt": "Hi", "responses": ["a"]}, "responses must be a list of at least 2 texts, got 1"),
        ({"prompt": "Hi", "responses": []}, "responses must be a list of at least 2 texts, got 0"),
        ({"prompt": "Hi", "responses": "abc"}, "responses must be a list of at least 2 texts, got 'abc'"),
        ({"prompt": "Hi", "responses": ["a", 3]}, "responses[1] must be text, got 3"),
        ({"prompt": "Hi", "responses": ["a", "b"], "anchors": ""}, "anchors must be a list of at least 0 texts, got ''"),
        ({"prompt": "Hi", "responses": ["a", "b"], "anchors": ["b", 3]}, "anchors[1] must be text, got 3"),
        ({"prompt": "Hi", "responses": ["a", "b"], "anchors": ["b", "b"]}, "anchors[0] and anchors[1] are the same text"),
        ({"responses": ["a", "b"]}, "prompt must be text"),
    ],
)
def test_rows_that_are_no_response_sets_are_named(file: Any, row: dict[str, Any], expected: str) -> None:
    path = file({"prompt": "Hi", "responses": ["a", "b"], "anchors": None}, row)
    found = message(read_response_sets, path)
    assert found.startswith(f"{path}, line 2: ")
    assert expected in found


def test_training_needs_anchors(file: Any) -> None:
    path = file({"prompt": "Hi", "responses": ["a", "b"]})
    assert (
        message(read_response_sets, path, minimum_anchors=2)
        == f"{path}, line 1: anchors must be a list of at least 2 texts, got 0"
    )


# Real files


def test_demo_anchors_are_what_their_card_says() -> None:
    rows = read_anchors(DEMO, minimum=5)
    assert len(rows) >= 48
    kinds = Counter(row["kind"] for row in rows)
    assert set(kinds) == {"explain", "write", "plan", "compare", "transform"}
    assert min(kinds.values()) >= 8
    assert len({row["prompt"] for row in rows}) == len({row["id"] for row in rows}) == len(rows)
    texts = [anchor for row in rows for anchor in row["anchors"]]
    assert len(set(texts)) == len(texts)
    assert all(text.strip() for text in texts)
    assert not any(anchor in row["prompt"] for row in rows for anchor in row["anchors"][:1])
    assert len(read_prompts(DEMO)) == len(rows)
    assert read_anchors(DEMO, limit=3) == rows[:3]
    card = data_path(DEMO).with_name("README.md").read_text(encoding="utf-8")
    for kind, count in kinds.items():
        assert f"| {kind} | {count} | {count * 5} |" in card


@pytest.mark.skipif(not RANKED_VICUNA.exists(), reason="the shared data is not here")
def test_real_ranked_responses_are_read(tmp_path: Path) -> None:
    path = tmp_path / "vicuna.jsonl"
    with path.open("w", encoding="utf-8") as out:
        for _, row in read_rows(RANKED_VICUNA):
            out.write(json.dumps({"id": row["id"], "prompt": row["prompt"], "anchors": row["responses"]}) + "\n")
    rows = read_anchors(path, minimum=4)
    assert len(rows) == 80
    assert {len(row["anchors"]) for row in rows} == {4}
    assert [row["id"] for row in rows[:2]] == ["vicuna-1", "vicuna-2"]
    sets = read_response_sets(RANKED_VICUNA)
    assert len(sets) == 80
    assert all(len(response_set.responses) == 4 for response_set in sets)
