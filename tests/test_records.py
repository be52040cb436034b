"""The audit trail: whole lines, the same keys always, nothing lost and nothing made up."""

from __future__ import annotations

import asyncio
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from openrlhf_dynamicrubric import prompts
from openrlhf_dynamicrubric.errors import ModelCallError
from openrlhf_dynamicrubric.evaluator import Evaluator, EvaluatorConfig
from openrlhf_dynamicrubric.files import read_lines
from openrlhf_dynamicrubric.metrics import group_metrics
from openrlhf_dynamicrubric.records import RecordFile, group_record, read_records, usage_record
from openrlhf_dynamicrubric.types import Evaluation, ResponseSet, Rubric, RubricItem, Unscorable, Usage
from tests.scripted import RUBRIC, ScriptedModel, contains_last_letter

DOC = (Path(__file__).parent.parent / "docs/records.md").read_text(encoding="utf-8")
SET = ResponseSet("x", ("a", "b", "ab"), ("ab", ""), "7")
HOSTILE = [
    "line\nline\r\nline\x85line\u2028line\u2029line\x0bline\x0cline\x1c",
    '"},{"kind": "group"}\\',
    "\x00\x1f\x7f",
    "é ２ 😀 \u202e",
    "</script><script>alert(1)</script>",
    "NaN",
    "",
]


def outcome(
    *, write: Any = lambda prompt, seed: RUBRIC, judge: Any = contains_last_letter, response_set: Any = SET, **options: Any
):
    model = ScriptedModel(write, judge)
    return asyncio.run(Evaluator(generator=model, verifier=model, config=EvaluatorConfig(**options)).evaluate(response_set))


def failing(response: str, criterion: str) -> float | ModelCallError:
    return (
        ModelCallError("down") if criterion == "Contains a" and response == "b" else contains_last_letter(response, criterion)
    )


def down(response: str, criterion: str) -> float:
    raise ModelCallError("down")


OUTCOMES = {
    "scored": outcome(),
    "dropped": outcome(judge=failing),
    "invalid": outcome(write=lambda prompt, seed: "no", rubric_retries=1),
    "unverified": outcome(judge=down),
    "static": outcome(rubric_source="prompt"),
    "given": asyncio.run(
        Evaluator(generator=None, verifier=ScriptedModel()).judge(Rubric((RubricItem("Contains a", 1),)), SET)
    ),
    "turns": outcome(response_set=ResponseSet([{"role": "user", "content": "x"}], ("a",))),
}


def section(title: str) -> set[str]:
    """The names in the first column of one section's table."""
    text = DOC.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    cells = re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


# Groups


@pytest.mark.parametrize("name", OUTCOMES)
def test_doc_names_every_key_of_a_group_and_no_other(name: str) -> None:
    record = group_record(OUTCOMES[name])
    assert set(record) == (section("Groups") | {"kind"})
    assert json.loads(json.dumps(record, allow_nan=False)) == record


def test_doc_names_the_keys_of_every_record(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "groups.jsonl")
    file.append([{"kind": "group"}], step=3)
    (row,) = read_lines(file.path)
    assert set(row) == section("Every record")


def test_doc_names_the_keys_of_the_judges() -> None:
    assert section("Judges") == {"generator", "verifier"}


def test_doc_names_usage() -> None:
    assert set(usage_record(Usage())) == section("Usage")


def test_doc_names_every_metric() -> None:
    named = section("Metrics")
    assert set(group_metrics(list(OUTCOMES.values()), seconds=1.0)) <= named
    assert len([name for name in named if name.startswith("dynamicrubric/")]) == 16


def test_doc_names_every_key_of_a_sampled_rubric() -> None:
    pytest.importorskip("torch")
    from openrlhf_dynamicrubric.trl import rubric_rewards

    one = rubric_rewards.read_sampled(SET, RUBRIC, tokens=5, ended=True, max_items=8)
    record = rubric_rewards.rubric_record(one, member=0, advantage=math.nan, mode="train")
    assert set(record) == section("Rubrics") | {"kind"}


def test_a_scored_group_by_hand() -> None:
    record = group_record(OUTCOMES["scored"])
    assert record == {
        "kind": "group",
        "id": "7",
        "prompt": "x",
        "responses": ["a", "b", "ab"],
        "anchors": ["ab", ""],
        "scores": [0.625, 0.375, 1.0],
        "unscorable": None,
        "items": [{"criterion": "Contains a", "weight": 5}, {"criterion": "Contains b", "weight": 3}],
        "verdicts": [[1, 0, 1], [0, 1, 1]],
        "probabilities": [[0.9, 0.1, 0.9], [0.1, 0.9, 0.9]],
        "dropped": [],
        "failures": [],
        "failed_verdicts": 0,
        "cached_verdicts": 0,
        "rejected": [],
        "rejected_texts": [],
        "rubric_text": RUBRIC,
        "order": record["order"],
        "cut_responses": 0,
        "generator_usage": usage_record(Usage(calls=1, prompt_tokens=10, completion_tokens=5)),
        "verifier_usage": usage_record(Usage(calls=6, prompt_tokens=120)),
    }
    assert sorted(record["order"]) == [0, 1, 2]


def test_a_dropped_item_keeps_the_verdicts_it_had() -> None:
    record = group_record(OUTCOMES["dropped"])
    assert record["dropped"] == [{"criterion": "Contains a", "weight": 5, "probabilities": [0.9, None, 0.9]}]
    assert record["items"] == [{"criterion": "Contains b", "weight": 3}]
    assert record["scores"] == [0.0, 1.0, 1.0]
    assert (record["failures"], record["failed_verdicts"]) == (["down"], 1)


def test_an_unscorable_group_keeps_everything_but_scores() -> None:
    invalid = group_record(OUTCOMES["invalid"])
    assert invalid["scores"] is None
    assert invalid["unscorable"]["kind"] == "invalid_rubric"
    assert len(invalid["rejected"]) == 2
    assert invalid["rejected_texts"] == ["no", "no"]
    assert invalid["rubric_text"] is None
    assert invalid["generator_usage"]["calls"] == 2

    unverified = group_record(OUTCOMES["unverified"])
    assert unverified["scores"] is None
    assert unverified["unscorable"] == {"kind": "verifier_call", "reason": "no item has all its verdicts; down"}
    assert unverified["rubric_text"] == RUBRIC
    assert unverified["items"] == unverified["verdicts"] == unverified["probabilities"] == []
    assert [item["probabilities"] for item in unverified["dropped"]] == [[None] * 3] * 2
    assert unverified["failed_verdicts"] == 6


def test_a_given_rubric_has_no_text() -> None:
    record = group_record(OUTCOMES["given"])
    assert (record["rubric_text"], record["order"], record["generator_usage"]["calls"]) == (None, None, 0)
    assert group_record(OUTCOMES["static"])["order"] == []


def test_values_made_by_hand_have_records_too() -> None:
    """Without the fields that have defaults."""
    lost = Unscorable(SET, "deadline", "too slow")
    assert group_record(lost)["unscorable"] == {"kind": "deadline", "reason": "too slow"}
    scored = OUTCOMES["scored"]
    assert isinstance(scored, Evaluation)
    by_hand = Evaluation(
        SET, scored.rubric, scored.probabilities_MK, scored.verdicts_MK, scored.scores_K, dropped=(RubricItem("Has c", 1),)
    )
    assert group_record(by_hand)["dropped"] == [{"criterion": "Has c", "weight": 1, "probabilities": []}]


# Files


def test_append_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "run" / "records" / "groups.jsonl"
    file = RecordFile(path, phase="train-policy", round=2)
    for step, name in enumerate(OUTCOMES):
        file.append([group_record(OUTCOMES[name])], step=step)
    file.append([], step=9)
    rows = list(read_records(tmp_path))
    assert [row["step"] for row in rows] == list(range(len(OUTCOMES)))
    assert {(row["schema"], row["prompts"], row["phase"], row["round"]) for row in rows} == {
        (1, prompts.version(), "train-policy", 2)
    }
    for row, name in zip(rows, OUTCOMES, strict=True):
        record = group_record(OUTCOMES[name])
        assert {key: row[key] for key in record} == record


def test_files_are_read_in_order_of_their_path(tmp_path: Path) -> None:
    for name in ("b/records/x.jsonl", "a/records/z.jsonl", "a/records/y.jsonl", "a/other/w.jsonl"):
        RecordFile(tmp_path / name).append([{"kind": "metrics", "name": name}], step=0)
    assert [row["name"] for row in read_records(tmp_path)] == ["a/records/y.jsonl", "a/records/z.jsonl", "b/records/x.jsonl"]
    assert [row["name"] for row in read_records(tmp_path / "b")] == ["b/records/x.jsonl"]
    assert list(read_records(tmp_path / "none")) == []


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_comes_back(tmp_path: Path, text: str) -> None:
    file = RecordFile(tmp_path / "records" / "groups.jsonl")
    hostile = outcome(response_set=ResponseSet(text, (text, "a"), (text,), text), strip_reasoning=False)
    file.append([group_record(hostile)] * 2, step=0)
    file.drop_from(1)
    lines = file.path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2
    for row in read_records(tmp_path):
        assert (row["prompt"], row["responses"], row["anchors"], row["id"]) == (text, [text, "a"], [text], text)


def test_lone_surrogates_become_question_marks(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "records" / "groups.jsonl")
    file.append([group_record(outcome(response_set=ResponseSet("x", ("a\ud800",))))], step=0)
    file.drop_from(1)
    assert [row["responses"] for row in read_records(tmp_path)] == [["a?"]]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_does_not_know_is_refused_before_anything_is_written(tmp_path: Path, value: float) -> None:
    file = RecordFile(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match="not JSON compliant"):
        file.append([{"kind": "metrics", "loss": 0.5}, {"kind": "metrics", "loss": value}], step=0)
    assert not file.path.exists()


def test_repeated_steps_are_taken_away(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "groups.jsonl")
    file.drop_from(3)
    assert not file.path.exists()
    for step in (0, 1, 1, 2, 3, 5):
        file.append([{"kind": "group", "n": step, "p": 0.1 + 0.2}], step=step)
    before = list(read_lines(file.path))
    file.drop_from(9)
    assert list(read_lines(file.path)) == before
    file.drop_from(2)
    assert list(read_lines(file.path)) == before[:3]
    file.append([{"kind": "group", "n": 2}], step=2)
    assert [row["n"] for row in read_lines(file.path)] == [0, 1, 1, 2]
    file.drop_from(0)
    assert file.path.read_bytes() == b""


def test_a_cut_line_does_not_outlive_a_resume(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "records" / "groups.jsonl")
    file.append([{"kind": "group", "n": 0}], step=0)
    with file.path.open("ab") as handle:
        handle.write(b'{"schema": 1, "step": 1, "n"')
    assert [row["n"] for row in read_records(tmp_path)] == [0]
    file.drop_from(1)
    file.append([{"kind": "group", "n": 1}], step=1)
    assert [row["n"] for row in read_records(tmp_path)] == [0, 1]


def test_damage_in_the_middle_is_named(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "records" / "groups.jsonl")
    file.append([{"kind": "group"}], step=0)
    with file.path.open("ab") as handle:
        handle.write(b"\x00\x00\x00\n")
    with pytest.raises(ValueError, match=r"groups\.jsonl is damaged: "):
        list(read_records(tmp_path))
