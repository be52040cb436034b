from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from openrlhf_dynamicrubric import cli
from openrlhf_dynamicrubric.anchors import read_response_sets
from openrlhf_dynamicrubric.errors import ConfigError, DataError, ModelCallError, PhaseError
from openrlhf_dynamicrubric.llm import load
from openrlhf_dynamicrubric.llm.base import Completion
from openrlhf_dynamicrubric.trl import sample
from tests.scripted import ScriptedModel
from tests.tiny_run import environment
from tests.trl.ranks import free_port

Sampler = Callable[..., list[dict[str, Any]]]
ROWS = [{"id": f"p{number}", "prompt": f"Prompt {number}", "anchors": ["good", "bad"]} for number in range(5)]


def echo(prompt: Any, seed: int) -> str:
    return f"{prompt if isinstance(prompt, str) else prompt[0]['content']} / {seed}"


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> ScriptedModel:
    scripted = ScriptedModel(write=echo)
    monkeypatch.setattr(load, "load_model", lambda name, **options: scripted)
    return scripted


@pytest.fixture
def run(tmp_path: Path) -> Sampler:
    def sampled(folder: str = "out", rows: list[dict[str, Any]] = ROWS, **options: Any) -> list[dict[str, Any]]:
        output = tmp_path / folder / "responses.jsonl"
        values = {"anchors": write_rows(tmp_path / "anchors.jsonl", rows), "output": output, "num_responses": 3, **options}
        assert sample.main([word for name, value in values.items() for word in (f"--{name}", str(value))]) == 0
        return [json.loads(line) for line in output.read_text().splitlines()]

    return sampled


def test_every_prompt_gets_its_responses_in_the_files_order_with_its_anchors(
    run: Sampler, model: ScriptedModel, tmp_path: Path
) -> None:
    lines = run(batch_prompts=2)
    assert [(line["id"], line["prompt"], line["anchors"]) for line in lines] == [
        (row["id"], row["prompt"], row["anchors"]) for row in ROWS
    ]
    assert all(len(set(line["responses"])) == 3 for line in lines)
    assert all(text.startswith(f"{line['prompt']} / ") for line in lines for text in line["responses"])
    assert len(read_response_sets(tmp_path / "out/responses.jsonl", minimum_anchors=2)) == 5
    done = json.loads((tmp_path / "out/done.json").read_text())
    assert done["artefact"] == "responses.jsonl"
    assert done["skipped"] == 0
    assert done["command"].startswith("python -m openrlhf_dynamicrubric sample --anchors ")
    progress = json.loads((tmp_path / "out/progress.json").read_text())
    assert (progress["step"], progress["total"], progress["unit"]) == (5, 5, "prompts")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"responses.jsonl", "done.json", "progress.json", ".lock"}


def test_the_result_depends_on_seed_and_prompt_and_not_on_neighbours_or_batches(run: Sampler, model: ScriptedModel) -> None:
    once = run("once", batch_prompts=1)
    assert run("again", batch_prompts=4) == once
    assert run("fewer", max_prompts=2) == once[:2]
    other = run("other", seed=1)
    assert all(a["responses"] != b["responses"] for a, b in zip(once, other, strict=True))


def test_plain_prompts_stay_plain_unless_chat_is_asked_for(run: Sampler, model: ScriptedModel) -> None:
    run("plain", max_prompts=1)
    assert model.written == ["Prompt 0"] * 3
    lines = run("chat", max_prompts=1, chat_prompts=True)
    assert model.written[3:] == [[{"role": "user", "content": "Prompt 0"}]] * 3
    assert lines[0]["prompt"] == "Prompt 0"
    turns = [{"role": "user", "content": "Hello"}]
    lines = run("turns", rows=[{**ROWS[0], "prompt": turns}], chat_prompts=True)
    assert model.written[-1] == turns
    assert lines[0]["prompt"] == turns


def test_what_was_answered_before_a_crash_is_not_asked_again(run: Sampler, model: ScriptedModel, tmp_path: Path) -> None:
    whole = run("whole", batch_prompts=2)

    def crash(prompt: Any, seed: int) -> str:
        if prompt == "Prompt 2":
            raise MemoryError("crash")
        return echo(prompt, seed)

    model.write = crash
    with pytest.raises(MemoryError):
        run("cut", batch_prompts=2)
    part = tmp_path / "cut/responses.jsonl.part-000"
    assert len(part.read_text().splitlines()) == 1
    assert not (tmp_path / "cut/responses.jsonl").exists()
    with part.open("a") as file:
        file.write('{"key": "half a li')
    model.write, model.written = echo, []
    assert run("cut", batch_prompts=2) == whole
    assert (tmp_path / "cut/responses.jsonl").read_bytes() == (tmp_path / "whole/responses.jsonl").read_bytes()
    assert {str(prompt) for prompt in model.written} == {"Prompt 2", "Prompt 3", "Prompt 4"}


def test_parts_of_other_options_are_left_aside(run: Sampler, model: ScriptedModel, tmp_path: Path) -> None:
    line = {"key": "000000000000", "batch": 0, "lines": [{"id": "stranger"}], "seconds": 1.0}
    (tmp_path / "out").mkdir()
    (tmp_path / "out/responses.jsonl.part-007").write_text(json.dumps(line) + "\n")
    assert [line["id"] for line in run()] == [row["id"] for row in ROWS]


def test_a_prompt_that_cannot_be_answered_is_left_out_and_counted(
    run: Sampler, model: ScriptedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def too_long(prompt: Any, seed: int) -> str | Completion:
        if prompt == "Prompt 1":
            raise ModelCallError("the prompt has 9 tokens too many")
        return echo(prompt, seed)

    model.write = too_long
    assert [line["id"] for line in run()] == ["p0", "p2", "p3", "p4"]
    assert json.loads((tmp_path / "out/done.json").read_text())["skipped"] == 1
    assert "prompt p1 is left out: the prompt has 9 tokens too many" in caplog.text
    with pytest.raises(PhaseError, match="none of 1 prompts could be answered"):
        run("none", rows=[ROWS[1]])
    assert not (tmp_path / "none/done.json").exists()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_responses": 1}, ConfigError, "num_responses must be at least 2, got 1"),
        ({"top_p": 1.5}, ConfigError, r"top_p lie in \(0, 1\], got 1.0 and 1.5"),
        ({"batch_promptss": 1}, ConfigError, r"unknown option --batch_promptss; did you mean batch_prompts"),
        ({"dtype": "float8"}, ConfigError, "dtype: invalid choice"),
        ({"rows": [{"prompt": "x", "anchors": ["a", "a"]}]}, DataError, "same text"),
    ],
)
def test_mistakes(run: Sampler, model: ScriptedModel, options: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        run(**options)


def test_a_base_model_without_a_chat_template_answers_plain_prompts(tmp_path: Path) -> None:
    from tests.tiny import build_tiny_model

    base = build_tiny_model(tmp_path / "base")
    (base / "chat_template.jinja").unlink()
    rows = write_rows(tmp_path / "anchors.jsonl", ROWS[:1])
    words = [
        "--model",
        base,
        "--anchors",
        rows,
        "--output",
        tmp_path / "out.jsonl",
        "--num_responses",
        2,
        "--max_new_tokens",
        4,
    ]
    assert sample.main(list(map(str, words))) == 0
    assert len(json.loads((tmp_path / "out.jsonl").read_text())["responses"]) == 2


@pytest.mark.slow
def test_two_processes_write_what_one_does(tiny: Path, tmp_path: Path) -> None:
    anchors = write_rows(tmp_path / "anchors.jsonl", ROWS)
    options = ["--model", tiny, "--anchors", anchors, "--num_responses", 2, "--max_new_tokens", 8, "--batch_prompts", 2]
    words = ["-m", "openrlhf_dynamicrubric", "sample", *options, "--output"]
    launched = ["-m", "torch.distributed.run", "--nproc-per-node", 2, "--master-port", free_port(), *words]
    for name, command in (("one", words), ("two", launched)):
        done = subprocess.run(
            [sys.executable, *map(str, command), str(tmp_path / name / "responses.jsonl")],
            env=environment(), capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    one, two = ((tmp_path / name / "responses.jsonl").read_bytes() for name in ("one", "two"))
    assert one == two
    assert len(one.splitlines()) == 5


def test_a_full_disk_keeps_what_was_whole(
    run: Sampler, model: ScriptedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = sample.append_lines
    room = [2]

    def append(path: Path, rows: list[Any]) -> None:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        room[0] -= 1
        plain(path, rows)

    monkeypatch.setattr(sample, "append_lines", append)
    anchors, output = write_rows(tmp_path / "anchors.jsonl", ROWS), tmp_path / "out/responses.jsonl"
    words = ["sample", "--anchors", str(anchors), "--output", str(output), "--num_responses", "2", "--batch_prompts", "1"]
    assert cli.main(words) == 1
    assert capsys.readouterr().err == (
        f"error: sample: No space left on device for {output}.part-000; make room, and the same command goes on\n"
    )
    room[0], asked = 99, len(model.written)
    assert cli.main(words) == 0
    assert len(model.written) - asked == 2 * 3  # two of five prompts were on disk
