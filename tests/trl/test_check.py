"""Everything that would stop a run late is found before it starts: one test for each kind of mistake."""

from __future__ import annotations

import json
import re
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from openrlhf_dynamicrubric.phases import KINDS
from openrlhf_dynamicrubric.run_config import run_config
from openrlhf_dynamicrubric.trl import check
from tests.tiny import build_tiny_model
from tests.tiny_run import tiny_options

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def options(tmp_path: Path, tiny: Path) -> dict[str, Any]:
    return tiny_options(tmp_path / "run", dict.fromkeys(("policy", "generator", "verifier"), str(tiny)))


def findings(options: dict[str, Any], *kinds: str) -> check.Findings:
    config = run_config(options)
    config.folder.mkdir(exist_ok=True)
    return check.check_run(config, kinds or KINDS)


def with_value(options: dict[str, Any], block: str, **values: Any) -> dict[str, Any]:
    return {**options, block: {**options[block], **values}}


def test_nothing_stands_in_the_way_of_a_run_that_can_work(options: dict[str, Any]) -> None:
    found = findings(options)
    assert (found.errors, found.notes) == ([], [])


@pytest.mark.parametrize(
    ("block", "values", "message"),
    [
        ("policy", {"num_generation": 4}, r"train-policy: unknown option num_generation; did you mean num_generations"),
        ("policy", {"learning_rate": "fast"}, r"train-policy: learning_rate must be a number, got 'fast'"),
        ("policy", {"max_steps": 2.5}, r"train-policy: max_steps must be a whole number, got 2.5"),
        ("policy", {"use_cpu": "maybe"}, r"train-policy: use_cpu: Truthy value expected"),
        ("policy", {"lr_scheduler_type": "sideways"}, r"train-policy: .*sideways"),
        ("policy", {"num_generations": 3}, r"train-policy: generation_batch_size \(4\) must be divisible by num_gen"),
        ("policy", {"num_generations": 1}, r"train-policy: GRPO requires at least 2 generations"),
        ("policy", {"per_device_train_batch_size": 12}, r"train-policy: the training dataset has 2 prompts, .* takes 3"),
        ("generator", {"per_device_train_batch_size": 36}, r"train-generator: the training dataset has 8 prompts, .* takes 9"),
        ("generator", {"anchor_weight": 0, "use_discriminability": False}, r"train-generator: anchor_weight 0 without discrim"),
        ("generator", {"anchor_weight": -1}, r"train-generator: anchor_weight and std_floor must be at least 0, got -1"),
        ("generator", {"scale_rewards": "batch"}, r"train-generator: scale_rewards is 'batch'"),
        ("policy", {"use_peft": True}, r"train-policy: use_peft: the next phase needs whole models"),
        ("policy", {"eval_strategy": "steps"}, r"train-policy: eval_strategy steps: this command has no evaluation data"),
        ("policy", {"gradient_accumulation_steps": 1, "steps_per_generation": 2, "save_steps": 3},
         r"train-policy: a checkpoint at step 3 would lie between two generations.*make save_steps \(3\) a multiple of 2 "),
        ("policy", {"logging_steps": 2}, r"train-policy: a checkpoint at step 1 would lie between two logs"),
        ("policy", {"save_only_model": True}, r"train-policy: save_only_model: checkpoints without the optimiser's state"),
        ("policy", {"save_strategy": "best"}, r"train-policy: .*best"),
    ],
)  # fmt: skip
def test_mistakes_in_the_frameworks_options(options: dict[str, Any], block: str, values: dict[str, Any], message: str) -> None:
    found = findings(with_value(options, block, **values), f"train-{block}")
    assert len(found.errors) == 1, found.errors
    assert re.search(f"^{message}", found.errors[0]), found.errors[0]


def test_all_mistakes_are_found_at_once(options: dict[str, Any]) -> None:
    options = with_value(with_value(options, "policy", learning_rat=1), "generator", num_generations=3)
    options["models"] = {**options["models"], "policy": "./nowhere"}
    found = findings(options)
    assert [error.split(":")[0] for error in found.errors] == ["sample", "train-generator", "train-policy"]


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("anchors", {"prompt": "Hi"}, "line 1: anchors must be a list of at least 2 texts"),
        ("anchors", {"prompt": "Hi", "anchors": ["a"]}, "line 1: anchors must be a list of at least 2 texts, got 1"),
        ("anchors", {"anchors": ["a", "b"]}, "line 1: prompt must be text"),
        ("prompts", {"question": "Hi"}, "line 1: prompt must be text"),
    ],
)
def test_a_column_that_is_missing(
    options: dict[str, Any], tmp_path: Path, name: str, row: dict[str, Any], message: str
) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(row) + "\n")
    found = findings({**options, name: str(path)})
    assert found.errors
    assert all(message in error for error in found.errors), found.errors


def test_plain_and_chat_prompts_side_by_side(options: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    chat = [{"role": "user", "content": "Hi"}]
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in ("Hi", chat)))
    found = findings({**options, "prompts": str(path), "chat_prompts": False}, "train-policy")
    assert found.errors == [
        "train-policy: prompt 1 is plain text and prompt 2 chat turns; make them alike, or set chat_prompts: true"
    ]
    assert findings({**options, "prompts": str(path)}, "train-policy").errors == []


def test_a_model_that_is_not_there_or_not_whole(options: dict[str, Any], tmp_path: Path, tiny: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny, broken)
    (broken / "model.safetensors").write_bytes((broken / "model.safetensors").read_bytes()[:5_000])
    options["models"] = {"policy": str(tmp_path / "none"), "generator": str(tiny), "verifier": str(broken)}
    found = findings(options)
    assert f"sample: there is no folder {tmp_path}/none" in found.errors
    assert any(error.startswith(f"train-generator: {broken} ") for error in found.errors)


def test_a_judge_without_a_chat_template(options: dict[str, Any], tmp_path: Path, tiny: Path) -> None:
    mute = tmp_path / "mute"
    shutil.copytree(tiny, mute)
    (mute / "chat_template.jinja").unlink()
    options["models"]["verifier"] = str(mute)
    assert all("has no chat template" in error for error in findings(options).errors)
    assert len(findings(options).errors) == 2


def complete(folder: Path, artefact: str, source: Path | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if source:
        shutil.copytree(source, folder / artefact)
    else:
        line = {"prompt": "Hi", "responses": ["a", "b"], "anchors": ["x", "y"], "id": "1"}
        (folder / artefact).write_text(json.dumps(line) + "\n")
    (folder / "done.json").write_text("{}")


def test_a_generator_of_another_architecture_than_the_run_began_with(options: dict[str, Any], tmp_path: Path) -> None:
    other = build_tiny_model(tmp_path / "other", model_type="qwen2", hidden_size=64)
    first = tmp_path / "run/round-01"
    complete(first / "sample", "responses.jsonl")
    complete(first / "train-generator", "model", other)
    found = findings(options, "train-policy")
    assert len(found.errors) == 1
    assert f"train-policy: the generator ({first}/train-generator/model) has another architecture than" in found.errors[0]
    assert "model_type qwen2 instead of llama, hidden_size 64 instead of 32" in found.errors[0]


def test_a_checkpoint_of_another_architecture_than_the_model(options: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "run/round-01/train-generator/checkpoint-1"
    build_tiny_model(folder, hidden_size=64)
    (folder / "complete.json").write_text(json.dumps({"step": 1, "total": 4, "epoch": 0.5, "seconds": 1.0, "files": {}}))
    found = findings(options, "train-generator")
    assert len(found.errors) == 1
    assert f"train-generator: checkpoint-1 ({folder}) has another architecture than" in found.errors[0]


def test_a_disk_that_is_too_small(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tiny: Path) -> None:
    parameters = check._check_model(check.Findings(), str(tiny))
    models = 4 * 4 * parameters  # 2 rounds x 2 models in float32
    checkpoints = 4 * 12 * parameters  # those of one phase at a time: 4 saves with weights and two moments
    monkeypatch.setattr(check.shutil, "disk_usage", lambda path: Usage(0, 0, models + checkpoints))
    assert findings(options).errors == []
    monkeypatch.setattr(check.shutil, "disk_usage", lambda path: Usage(0, 0, models + checkpoints - 1))
    [error] = findings(options).errors
    assert "free, and the run needs about" in error
    assert f"{check._size(models)} for models, {check._size(checkpoints)} for checkpoints" in error
    limited = with_value(with_value(options, "generator", save_total_limit=1), "policy", save_total_limit=1)
    assert findings(limited).errors == []  # two at a time
    assert len(findings({**options, "keep_checkpoints": True}).errors) == 1


def test_vllm_is_said_not_to_resume_bit_for_bit(options: dict[str, Any]) -> None:
    found = findings(with_value(options, "policy", use_vllm=True), "train-policy")
    assert found.errors == []
    assert found.notes == [
        "train-policy: vLLM's sampling is not in a checkpoint: a phase that is interrupted goes on, "
        "but not bit for bit as it would have"
    ]


def test_the_command_says_what_it_found_and_writes_it(options: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    run = Path(options["output_dir"])
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"config": options}))
    assert check.main([str(run), "sample", "--result", str(run / "found.json")]) == 0
    assert json.loads((run / "found.json").read_text()) == {"errors": [], "notes": []}
    (run / "run.json").write_text(json.dumps({"config": {**options, "anchors": "nowhere.jsonl"}}))
    assert check.main([str(run), "sample", "--result", str(run / "found.json")]) == 1
    assert json.loads((run / "found.json").read_text())["errors"] == ["sample: nowhere.jsonl is not a file"]
    assert "sample: nowhere.jsonl is not a file" in capsys.readouterr().err


def test_an_unknown_kind_of_phase_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        check.main([str(tmp_path), "sampl"])
    assert end.value.code == 2
    assert capsys.readouterr().err.endswith("argument kind: 'sampl' is none of sample, train-generator, train-policy\n")
