"""Scoring from the command line: figures worked by hand, hostile texts, options, exit codes."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from openrlhf_dynamicrubric import aio
from openrlhf_dynamicrubric.errors import ConfigError, DataError, ModelCallError
from openrlhf_dynamicrubric.evaluator import Evaluator, EvaluatorConfig
from openrlhf_dynamicrubric.report import write_report
from openrlhf_dynamicrubric.score import Scored, main, score_sets
from openrlhf_dynamicrubric.types import ResponseSet, Unscorable
from tests.scripted import ScriptedModel, contains_last_letter

SETS = [
    {"prompt": "Which letters?", "responses": ["a", "b", "ab", "-"], "anchors": ["ab", "a", "-"], "id": "letters"},
    {"prompt": "Again", "responses": ["a", "a"]},
]
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def judges() -> dict[str, Any]:
    """What the scripted judges do, and the configurations they were made with."""
    return {"model": ScriptedModel(), "configs": [], "with_generator": []}


@pytest.fixture
def run(tmp_path: Path, judges: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command on some sets with scripted judges; gives its exit code and standard output."""

    def load(config: EvaluatorConfig, *, with_generator: bool = True) -> Evaluator:
        judges["configs"].append(config)
        judges["with_generator"].append(with_generator)
        model = judges["model"]
        return Evaluator(generator=model if with_generator else None, verifier=model, config=config)

    monkeypatch.setattr("openrlhf_dynamicrubric.llm.load.load_evaluator", load)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*words: str, sets: Any = SETS) -> tuple[int, str]:
        path = tmp_path / "sets.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in sets))
        code = main([str(path), *words])
        return code, capsys.readouterr().out

    return call


def lines_of(output: str) -> list[str]:
    return [" ".join(line.split()) for line in output.splitlines()]


def test_tables_hold_the_figures(run: Run) -> None:
    code, output = run()
    lines = lines_of(output)
    assert code == 0
    assert lines[0] == "1. letters Which letters?"
    assert lines[1] == "w criterion 1 2 3 4 A1 A2 A3 yes"
    assert lines[2] == "5 Contains a ✓ ✗ ✓ ✗ ✓ ✓ ✗ 2/4"
    assert lines[3] == "3 Contains b ✗ ✓ ✓ ✗ ✓ ✗ ✗ 2/4"
    assert lines[4] == "score 0.62 0.38 1.00 0.00 1.00 0.62 0.00"
    # Pairs of 5/8, 3/8, 1, 0: 2/8, 3/8, 5/8, 5/8, 3/8, 1, together 26/8 over 6.
    ranking = sum(-math.log1p(math.exp(-gap)) / weight for gap, weight in ((1 - 0.625, 1), (1.0, 2), (0.625, 2)))
    assert lines[5] == f"score gap {26 / 8 / 6:.3f} R_disc 0.250 R_anchor {ranking:.3f} anchor accuracy 100%"
    assert "2. 2 Again" in lines
    for line in (
        "response sets 2",
        "scored 2",
        "unscorable 0",
        f"score gap {26 / 8 / 6 / 2:.3f} mean |E_i - E_j|; higher separates more",
        "zero-variance sets 50.0% all scores equal; lower is better",
        "saturated items 50.0% met by all or none; lower is better",
        "R_disc 0.125 at most 0.25; higher is better",
        "items a rubric 2.0",
        "anchor accuracy 100.0% pairs in order; 50% is chance; 1 sets with anchors",
        "invalid rubrics 0.0% of what the generator wrote",
        "generator tokens 30",
    ):
        assert line in lines


def test_embedded_judges_come_with_a_notice(run: Run) -> None:
    notice = "Judged by the embedded 135M model: it proves that everything runs, and nothing about quality."
    assert notice in lines_of(run()[1])
    assert notice in lines_of(run("--verifier", "org/big")[1])
    assert notice not in lines_of(run("--verifier", "org/big", "--generator", "org/big")[1])


def test_piped_output_has_no_escape_sequences(run: Run) -> None:
    assert "\x1b" not in run()[1]


@pytest.mark.parametrize("width", [40, 80, 140])
def test_no_line_is_wider_than_the_terminal(run: Run, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    rows = [{"prompt": "p " * 300, "responses": [f"a{k}" for k in range(8)], "anchors": ["ab", "b", "-"]}]
    lines = run(sets=rows)[1].splitlines()
    assert max(map(len, lines)) <= width
    if width == 80:
        assert "5 Contains a ✓✓✓✓✓✓✓✓ ✓✗✗ 8/8" in map(" ".join, map(str.split, lines))


def test_hostile_texts_reach_no_terminal(run: Run, judges: dict[str, Any]) -> None:
    evil = "[red]x[/red] :smile: \x1b[2J\x07\u202e\r a"
    rubric = json.dumps({"items": [{"criterion": evil, "weight": 5}]})
    judges["model"] = ScriptedModel(lambda prompt, seed: rubric)
    output = run(sets=[{"prompt": evil, "responses": ["a", evil], "id": evil}])[1]
    assert not set(output) & {"\x1b", "\x07", "\r", "\u202e"}
    assert output.count("[red]x[/red] :smile:") == 3
    judges["model"] = ScriptedModel(lambda prompt, seed: ModelCallError(evil))
    judges["model"].complete = _raises(evil)
    code, output = run(sets=[{"prompt": "p", "responses": ["a", "b"]}])
    assert code == 1
    assert not set(output) & {"\x1b", "\x07", "\r", "\u202e"}


def _raises(message: str) -> Callable[..., Any]:
    async def complete(*_: Any, **__: Any) -> None:
        raise ModelCallError(message)

    return complete


def test_nothing_scored_is_exit_code_1_with_the_reasons(run: Run, judges: dict[str, Any]) -> None:
    judges["model"] = ScriptedModel(lambda prompt, seed: "no rubric here")
    code, output = run()
    lines = lines_of(output)
    assert code == 1
    assert "scored 0" in lines
    assert "unscorable 2 no scores; reasons below" in lines
    assert "2 x invalid rubric: no valid rubric in 3 attempts; the last: no rubric found" in " ".join(lines)
    assert not any(line.startswith("score gap") for line in lines)


def test_a_failed_verdict_drops_the_item_and_is_no_score(run: Run, judges: dict[str, Any]) -> None:
    def judge(response: str, criterion: str) -> float | ModelCallError:
        return (
            ModelCallError("timeout")
            if (response, criterion) == ("b", "Contains b")
            else contains_last_letter(response, criterion)
        )

    judges["model"] = ScriptedModel(judge=judge)
    lines = lines_of(run()[1])
    assert "score 1.00 0.00 1.00 0.00 1.00 1.00 0.00" in lines
    assert "dropped, a verdict is missing: Contains b" in lines
    assert "failed verdicts 1 their items were dropped" in lines


def test_anchors_with_a_missing_verdict_are_left_out(run: Run, judges: dict[str, Any]) -> None:
    def judge(response: str, criterion: str) -> float | ModelCallError:
        return ModelCallError("timeout") if response == "anchor a" else contains_last_letter(response, criterion)

    judges["model"] = ScriptedModel(judge=judge)
    sets = [{"prompt": "p", "responses": ["a", "b"], "anchors": ["anchor a", "b"]}]
    output = run(sets=sets)[1]
    assert "R_anchor" not in output
    assert "scored 1" in lines_of(output)


def test_records_can_be_reported_on(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    (tmp_path / "somewhere" / "big").mkdir(parents=True)
    code, output = run("--output", str(folder), "--verifier", str(tmp_path / "somewhere" / "big"))
    rows = [json.loads(line) for line in (folder / "records" / "groups.jsonl").read_text().splitlines()]
    assert code == 0
    assert f"Records: {folder / 'records' / 'groups.jsonl'}" in output.replace("\n", "")
    assert [row["id"] for row in rows] == ["letters", "2"]
    assert (rows[0]["generator"], rows[0]["verifier"]) == ("embedded", "big")
    assert rows[0]["scores"] == [0.625, 0.375, 1.0, 0.0]
    assert rows[0]["anchor_scores"] == [1.0, 0.625, 0.0]
    assert rows[0]["anchor_verdicts"] == [[1, 1, 0], [1, 0, 0]]
    # 4 responses times 2 items; "ab", "a" and "-" as anchors are known by then.
    assert rows[0]["verifier_usage"]["calls"] == 8
    assert str(tmp_path) not in json.dumps(rows)
    page = write_report(folder).read_text()
    assert "2 of 2 response sets" in " ".join(page.split())
    assert "Judged by the embedded 135M model." in page
    with pytest.raises(ConfigError, match="exists already"):
        run("--output", str(folder))


def test_records_stand_in_the_order_of_the_input() -> None:
    seen: list[int] = []
    evaluator = _SlowEvaluator([0.03, 0.0, 0.01])
    results = aio.run(score_sets(evaluator, evaluator.sets, concurrency=3, done=lambda index, _: seen.append(index)))  # pyright: ignore[reportArgumentType]
    assert seen == [1, 2, 0]
    assert [result.outcome.response_set.id for result in results] == ["0", "1", "2"]


@pytest.mark.parametrize(("concurrency", "most"), [(1, 1), (3, 3), (50, 12)])
def test_concurrency_is_bounded(concurrency: int, most: int) -> None:
    evaluator = _SlowEvaluator([0.01] * 12)
    aio.run(score_sets(evaluator, evaluator.sets, concurrency=concurrency))  # pyright: ignore[reportArgumentType]
    assert evaluator.most == most


def test_an_error_ends_the_others() -> None:
    evaluator = _SlowEvaluator([10.0, 10.0, -1.0])
    with pytest.raises(ValueError, match="sleep length"):
        aio.run(score_sets(evaluator, evaluator.sets, concurrency=3))  # pyright: ignore[reportArgumentType]


class _SlowEvaluator:
    """Takes a time of its own for each set; a negative one is an error."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds = seconds
        self.sets = [ResponseSet("p", ("a",), (), str(index)) for index in range(len(seconds))]
        self.now = self.most = 0

    async def evaluate(self, response_set: ResponseSet) -> Unscorable:
        self.now += 1
        self.most = max(self.most, self.now)
        seconds = self.seconds[int(response_set.id)]
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        await asyncio.sleep(seconds)
        self.now -= 1
        return Unscorable(response_set, "generator_call", "slow")


def test_every_field_of_the_configuration_is_an_option(run: Run, judges: dict[str, Any]) -> None:
    other: dict[str, Any] = {
        str: lambda option: (
            "float32" if option.name == "judge_dtype" else "prompt" if option.name == "rubric_source" else "org/x"
        ),
        bool: lambda option: not option.default,
        int: lambda option: option.default + 1,
        float: lambda option: option.default / 2,
    }
    for option in fields(EvaluatorConfig):
        value = other[type(option.default)](option)
        name = option.name.replace("_", "-")
        words = [f"--{name}", str(value)] if not isinstance(value, bool) else [f"--{'' if value else 'no-'}{name}"]
        run(*words)
        assert getattr(judges["configs"][-1], option.name) == value
        assert [f.name for f in fields(EvaluatorConfig) if getattr(judges["configs"][-1], f.name) != f.default] == [option.name]


def test_underscores_are_taken_in_names_and_kept_in_values(run: Run, judges: dict[str, Any]) -> None:
    run("--max_items", "3", "--verifier=my_org/my_model", "--generator", "a_b", "--seed", "7")
    config = judges["configs"][-1]
    assert (config.max_items, config.verifier, config.generator, config.judge_seed) == (3, "my_org/my_model", "a_b", 7)


def test_given_rubric_needs_no_generator(run: Run, judges: dict[str, Any], tmp_path: Path) -> None:
    rubric = tmp_path / "rubric.json"
    rubric.write_text('{"items": [{"criterion": "Has b", "weight": 4}]}')
    code, output = run("--rubric", str(rubric), "--output", str(tmp_path / "out"))
    assert code == 0
    assert judges["with_generator"] == [False]
    assert judges["model"].written == []
    assert "4 Has b ✗ ✓ ✓ ✗ ✓ ✗ ✗ 2/4" in lines_of(output)
    row = json.loads((tmp_path / "out" / "records" / "groups.jsonl").read_text().splitlines()[0])
    assert "generator" not in row
    rubric.write_text('{"items": [{"criterion": "Has b", "weight": 9}]}')
    with pytest.raises(DataError, match=r"rubric\.json holds no valid rubric: weights must be whole numbers 1\.\.5, got 9"):
        run("--rubric", str(rubric))


def test_limit_and_show(run: Run) -> None:
    lines = lines_of(run("--limit", "1", "--show", "0")[1])
    assert lines[0] == "response sets 1"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"prompt": "p", "responses": ["a", "b"]}, {"prompt": "p"}],
            r"sets\.jsonl, line 2: responses must be a list of at least 2 texts, got None",
        ),
        ([{"prompt": "", "responses": ["a", "b"]}], r"sets\.jsonl, line 1: prompt must be text"),
        ([], r"sets\.jsonl has no rows"),
    ],
)
def test_bad_input_is_named(run: Run, judges: dict[str, Any], rows: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        run(sets=rows)
    assert judges["configs"] == []


@pytest.mark.parametrize(
    ("words", "message"), [(("--limit", "0"), "--limit must be at least 1"), (("--max-items", "0"), "max_items cannot be 0")]
)
def test_bad_options_are_named(run: Run, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(*words)


def test_full_disk_is_one_sentence(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="records cannot be written to"):
        run("--output", str(tmp_path / "file"))


def test_record_of_a_set_without_anchors_has_no_anchor_keys() -> None:
    record = Scored(Unscorable(ResponseSet("p", ("a",)), "invalid_rubric", "why")).record()
    assert not [key for key in record if key.startswith("anchor_")]
