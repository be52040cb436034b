"""The two training commands as processes of their own would run them, here one after another in this one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from openrlhf_dynamicrubric.errors import ConfigError, DataError, ModelLoadError, PhaseError
from openrlhf_dynamicrubric.files import locked
from openrlhf_dynamicrubric.phases import TRAIN_GENERATOR, TRAIN_POLICY, plan
from openrlhf_dynamicrubric.run_config import run_config
from openrlhf_dynamicrubric.trl import resume, train_generator, train_policy, training
from openrlhf_dynamicrubric.trl.arguments import SampleArguments, parse
from openrlhf_dynamicrubric.trl.resume import MARK
from tests.tiny import build_tiny_model
from tests.tiny_run import environment, tensors_digest, tiny_options, without_times
from tests.trl.ranks import free_port

MAINS = {TRAIN_GENERATOR: train_generator.main, TRAIN_POLICY: train_policy.main}
Command = Callable[..., Path]


@pytest.fixture
def command(tmp_path: Path, tiny: Path) -> Command:
    """Runs a training command in a folder, with options over those of the tiny run."""
    verifier = build_tiny_model(tmp_path / "verifier", seed=3)
    models = {"policy": str(tiny), "generator": str(tiny), "verifier": str(verifier)}
    phases = {phase.kind: phase for phase in plan(run_config(tiny_options(tmp_path / "run", models, rounds=1)))}
    sets = tmp_path / "sets.jsonl"
    lines = [
        {"id": f"s{n}", "prompt": f"Say {n}", "responses": [f"r{n} {k}" for k in range(3)], "anchors": [f"a{n}", "b", "c"]}
        for n in range(2)
    ]
    sets.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def run(kind: str, folder: str, *, ranks: int = 0, **options: Any) -> Path:
        inputs = {"response_sets": str(sets)} if kind == TRAIN_GENERATOR else {"generator": str(tiny)}
        values = {**phases[kind].options, **inputs, "output_dir": str(tmp_path / folder), "disable_tqdm": True, **options}
        path = tmp_path / f"{folder}.yaml"
        path.write_text(yaml.safe_dump(values))
        if ranks:
            launch_module("openrlhf_dynamicrubric", kind, "--config", path, ranks=ranks)
        else:
            assert MAINS[kind](["--config", str(path)]) == 0
        return tmp_path / folder

    return run


def launch_module(*words: object, ranks: int) -> None:
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", ranks, "--master-port", free_port(), "-m"]
    done = subprocess.run(
        [sys.executable, *map(str, (*launcher, *words))],
        env=environment(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def records(folder: Path) -> dict[str, Any]:
    return {
        path.name: [without_times(json.loads(line)) for line in path.read_text().splitlines()]
        for path in sorted((folder / "records").glob("*.jsonl"))
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(MAINS))
def test_going_on_from_any_checkpoint_gives_the_same_model_and_records_bit_for_bit(command: Command, kind: str) -> None:
    """Two prompts, four steps: after the second one the prompts come in another order."""
    whole = command(kind, "whole", weight_decay=0.1, beta=0.04)
    assert {path.name for path in whole.glob("checkpoint-*")} == {f"checkpoint-{step}" for step in (1, 2, 3, 4)}
    done = json.loads((whole / "done.json").read_text())
    assert done["artefact"] == "model"
    assert done["sha256"] == training.content_digest(whole / "model")
    assert (whole / "records/metrics.jsonl").read_text().count("\n") == 4
    for step in (1, 3, 4):
        folder = whole.with_name(f"from-{step}")
        shutil.copytree(whole, folder)
        shutil.rmtree(folder / "model")
        (folder / "done.json").unlink()
        for later in range(step + 1, 5):
            shutil.rmtree(folder / f"checkpoint-{later}")
        if step < 4:
            (folder / f"checkpoint-{step + 1}").mkdir()  # cut short
        command(kind, folder.name, weight_decay=0.1, beta=0.04)
        assert tensors_digest(folder / "model") == tensors_digest(whole / "model"), step
        assert records(folder) == records(whole), step
        assert json.loads((folder / "done.json").read_text())["seconds"] >= done["seconds"] if step == 4 else True


@pytest.mark.slow
def test_two_processes_go_on_from_a_checkpoint_bit_for_bit_too(command: Command) -> None:
    """One group cut in the middle, each process with random numbers of its own."""
    options = {"per_device_train_batch_size": 2, "ranks": 2}
    whole = command(TRAIN_POLICY, "whole", **options)
    assert len(list((whole / "checkpoint-2").glob("rng_state_*.pth"))) == 2
    assert len(records(whole)["groups.jsonl"]) == 4
    folder = whole.with_name("cut")
    shutil.copytree(whole, folder)
    for name in ("model", "checkpoint-4", "checkpoint-3/complete.json"):
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    (folder / "done.json").unlink()
    command(TRAIN_POLICY, "cut", **options)
    assert tensors_digest(folder / "model") == tensors_digest(whole / "model")
    assert records(folder) == records(whole)


@pytest.mark.slow
def test_without_checkpoints_a_phase_begins_afresh_and_its_records_too(command: Command) -> None:
    whole = command(TRAIN_POLICY, "whole", save_strategy="no")
    first = (records(whole), tensors_digest(whole / "model"))
    (whole / "done.json").unlink()
    command(TRAIN_POLICY, "whole", save_strategy="no")
    assert (records(whole), tensors_digest(whole / "model")) == first
    assert not list(whole.glob("checkpoint-*"))
    assert not (whole / "model.tmp").exists()


@pytest.mark.slow
def test_without_the_mixin_the_second_epoch_would_repeat_the_firsts_order(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins why ContinuedEpochs is there: once this fails, TRL resumes epochs itself, and the mixin can go."""
    whole = command(TRAIN_POLICY, "whole", max_prompts=4, max_steps=6)
    monkeypatch.setattr(resume.ContinuedEpochs, "epochs_done", property(lambda self: 0, lambda self, value: None), raising=True)
    folder = whole.with_name("again")
    shutil.copytree(whole, folder)
    (folder / "done.json").unlink()
    shutil.rmtree(folder / "checkpoint-6")
    command(TRAIN_POLICY, "again", max_prompts=4, max_steps=6)
    assert tensors_digest(folder / "model") != tensors_digest(whole / "model")


def test_options_without_which_nothing_can_be_trained(command: Command) -> None:
    with pytest.raises(ConfigError, match="response_sets is missing"):
        command(TRAIN_GENERATOR, "out", response_sets="")
    for kind in MAINS:
        with pytest.raises(ConfigError, match="model_name_or_path is missing"):
            command(kind, "out", model_name_or_path=None)
        with pytest.raises(ConfigError, match="unknown option max_step; did you mean max_steps"):
            command(kind, "out", max_step=3)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (TRAIN_GENERATOR, ["  --response_sets RESPONSE_SETS", "  --no_use_discriminability\n"]),
        (TRAIN_POLICY, ["  --prompts PROMPTS ", "  --max_items N "]),
    ],
)
def test_trls_options_are_listed_only_on_demand(
    kind: str, options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = {}
    for flag in ("--help", "-h", "--help-all"):
        with pytest.raises(SystemExit):
            MAINS[kind](["--max_steps", "3", flag])
        shown[flag] = capsys.readouterr().out
    assert shown["-h"] == shown["--help"]
    sentence = (
        "All fields of TRL's GRPOConfig and ModelConfig are accepted too (--help-all lists them), "
        "and of these --model_name_or_path and --output_dir are needed.\n"
    )
    assert shown["--help"].endswith(f"\n\n{sentence}")
    for option in options:
        assert option in shown["--help"]
    for theirs in ("  --num_generations ", "  --model_revision "):
        assert theirs not in shown["--help"]
        assert theirs in shown["--help-all"]
    groups = [line for line in shown["--help-all"].splitlines() if line.startswith("options")]
    own = f"options of dynamicrubric {kind}:"
    assert groups == ["options:", own, "options of TRL's GRPOConfig:", "options of TRL's ModelConfig:"]


def test_config_can_be_written_in_one_word_and_flags_win(tmp_path: Path) -> None:
    path = tmp_path / "a=b.yaml"
    path.write_text("num_responses: 3\nseed: 5\n")
    for words in ([f"--config={path}"], ["--config", str(path)]):
        [read] = parse([*words, "--seed", "7"], SampleArguments)
        assert (read.num_responses, read.seed) == (3, 7)
    with pytest.raises(ConfigError, match="--config needs the name of a YAML file"):
        parse(["--seed", "7", "--config"], SampleArguments)
    path.write_text("seed: [")
    with pytest.raises(ConfigError, match="the file of --config is not valid YAML"):
        parse(["--config", str(path)], SampleArguments)


def test_mistakes_are_found_before_training_also_by_hand(command: Command, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the training dataset has 2 prompts, and one generation batch takes 3"):
        command(TRAIN_POLICY, "out", per_device_train_batch_size=12)
    with pytest.raises(ConfigError, match="between two logs"):
        command(TRAIN_GENERATOR, "out", logging_steps=2)
    with pytest.raises(DataError, match=r"nowhere.jsonl is not a file"):
        command(TRAIN_GENERATOR, "out", response_sets=str(tmp_path / "nowhere.jsonl"))
    assert not (tmp_path / "out/model").exists()


def test_a_check_trains_nothing(command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in MAINS:
        command(kind, "out", check=True)
        assert "nothing stands in the way" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_in_which_another_process_works_is_left_alone(command: Command, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/done.json").write_text("{}")
    with locked(tmp_path / "out/.lock") as free:
        assert free
        with pytest.raises(PhaseError, match="another process is at work in"):
            command(TRAIN_POLICY, "out")
    assert (tmp_path / "out/done.json").exists()


@pytest.mark.parametrize("held", ["checkpoint-500/model.safetensors", "model/config.json", "records/groups.jsonl"])
def test_what_something_else_left_in_the_folder_is_not_touched(command: Command, tmp_path: Path, held: str) -> None:
    theirs = tmp_path / "out" / held
    theirs.parent.mkdir(parents=True)
    theirs.write_text("theirs")
    with pytest.raises(PhaseError, match=f"holds {held.split('/')[0]} of something else, which would be replaced"):
        command(TRAIN_POLICY, "out")
    assert theirs.read_text() == "theirs"


def test_a_folder_is_not_gone_on_with_under_other_options(tmp_path: Path) -> None:
    options = tmp_path / "phase.yaml"
    options.write_text("# a note\nlearning_rate: 1.0\n")
    training.claim(tmp_path, ["--config", str(options)])
    (tmp_path / "model").mkdir()
    options.write_text("# another note\nlearning_rate: 1.0\n")
    training.claim(tmp_path, ["--config", str(options)])
    options.write_text("learning_rate: 2.0\n")
    with pytest.raises(PhaseError, match="holds model of this phase with other options"):
        training.claim(tmp_path, ["--config", str(options)])
    with pytest.raises(PhaseError, match="holds model of this phase with other options"):
        training.claim(tmp_path, [f"--config={options}"])
    options.write_text("learning_rate: 1.0\n")
    training.claim(tmp_path, [f"--config={options}"])


def test_a_checkpoint_of_another_architecture_is_refused(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "claim", lambda folder, argv: None)  # as if the model's folder had been exchanged since
    checkpoint = build_tiny_model(tmp_path / "out/checkpoint-2", hidden_size=64)
    (checkpoint / MARK).write_text(json.dumps({"step": 2, "total": 4, "epoch": 1.0, "seconds": 1.0, "files": {}}))
    with pytest.raises(
        ModelLoadError, match=r"checkpoint-2 \(.*\) has another architecture than .*: hidden_size 64 instead of 32"
    ):
        command(TRAIN_POLICY, "out")


def test_a_model_that_is_not_whole_does_not_take_the_place_of_one_that_is(tmp_path: Path, tiny: Path) -> None:
    shutil.copytree(tiny, tmp_path / "model")

    def half(beside: Path) -> None:
        shutil.copytree(tiny, beside)
        (beside / "model.safetensors").unlink()

    with pytest.raises(ModelLoadError):
        training.keep_model(tmp_path, half)
    assert (tmp_path / "model/model.safetensors").exists()


def test_rows_for_the_policy_are_all_text_or_all_chat() -> None:
    turns = [{"role": "user", "content": "Hi"}]
    rows = [{"id": "1", "prompt": "Hi", "kind": "x"}, {"id": "2", "prompt": turns}]
    assert training.policy_rows(rows, chat=True) == [{"prompt": turns, "id": "1"}, {"prompt": turns, "id": "2"}]
    assert training.policy_rows(rows[:1], chat=False) == [{"prompt": "Hi", "id": "1"}]
    with pytest.raises(DataError, match="prompt 1 is plain text and prompt 2 chat turns"):
        training.policy_rows(rows, chat=False)
