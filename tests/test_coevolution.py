from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from openrlhf_dynamicrubric import coevolution, phases
from openrlhf_dynamicrubric.errors import ConfigError, PhaseError
from openrlhf_dynamicrubric.files import locked
from openrlhf_dynamicrubric.run_config import RunConfig, run_config

FAKE = [sys.executable, str(Path(__file__).with_name("fake_phases.py"))]
LAUNCH = {"sample": FAKE, "generator": FAKE, "policy": FAKE}


def config(folder: Path, **values: object) -> RunConfig:
    return run_config({"output_dir": str(folder / "run"), "launch": LAUNCH, **values})


def run(config: RunConfig) -> str:
    """The run's output."""
    console = Console(file=io.StringIO(), width=200)
    coevolution.coevolve(config, console=console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def calls(config: RunConfig) -> list[str]:
    return (config.folder / "calls.txt").read_text().split()


def does(config: RunConfig, kind: str, how: str) -> None:
    config.folder.mkdir(exist_ok=True)
    (config.folder / f"{kind}.does").write_text(how)


def wait_for(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def options(config: RunConfig, number: int, kind: str) -> dict[str, object]:
    return yaml.safe_load((config.folder / f"round-{number:02d}" / kind / "phase.yaml").read_text())


def test_a_run_calls_every_phase_once_with_the_models_of_the_phases_before(tmp_path: Path) -> None:
    some = config(tmp_path, seed=10, models={"policy": "p0", "generator": "g0", "verifier": "v"})
    output = run(some)
    rounds = [f"round-{number:02d}/{kind}" for number in (1, 2) for kind in phases.KINDS]
    assert calls(some) == rounds
    first, second = some.folder / "round-01", some.folder / "round-02"
    assert options(some, 1, "sample")["model"] == "p0"
    assert options(some, 1, "train-generator")["model_name_or_path"] == "g0"
    assert options(some, 1, "train-policy")["model_name_or_path"] == "p0"
    assert options(some, 1, "train-policy")["generator"] == str(first / "train-generator/model")
    assert options(some, 2, "sample")["model"] == str(first / "train-policy/model")
    assert options(some, 2, "train-generator")["model_name_or_path"] == str(first / "train-generator/model")
    assert options(some, 2, "train-generator")["response_sets"] == str(second / "sample/responses.jsonl")
    assert options(some, 2, "train-policy")["model_name_or_path"] == str(first / "train-policy/model")
    assert options(some, 2, "train-policy")["generator"] == str(second / "train-generator/model")
    assert [options(some, number, kind)["seed"] for number in (1, 2) for kind in phases.KINDS] == [11, 11, 11, 12, 12, 12]
    assert all(options(some, number, kind)["verifier"] == "v" for number in (1, 2) for kind in phases.KINDS[1:])
    assert f"Report: {some.folder}" in output
    for phase in phases.plan(some):
        assert " ".join(phase.command) in output  # so that it can be run by hand
    assert run(some).splitlines()[0].endswith("6 of 6 phases complete")
    assert calls(some) == rounds


def test_options_of_the_framework_go_to_it_as_they_are(tmp_path: Path) -> None:
    some = config(tmp_path, rounds=1, generator={"learning_rate": "1e-5"}, policy={"report_to": "tensorboard", "beta": 0.01})
    run(some)
    generator, policy = options(some, 1, "train-generator"), options(some, 1, "train-policy")
    assert (generator["learning_rate"], generator["report_to"]) == ("1e-5", "none")
    assert (policy["report_to"], policy["beta"]) == ("tensorboard", 0.01)
    ours = {"output_dir", "report_to", "seed", "model_name_or_path", "response_sets", "generator", "verifier"}
    judges = {"rubric_source", "verdict_threshold", "strip_reasoning", "constrained_rubrics", "max_response_chars"}
    assert {key for key in generator if not key.startswith(("judge_", "max_", "rubric_"))} == (
        ours | judges - {"max_response_chars", "rubric_source"} | {"learning_rate"}
    )


def test_stale_responses_are_sampled_from_the_first_policy_in_every_round(tmp_path: Path) -> None:
    some = config(tmp_path, sample_from="initial", models={"policy": "p0"})
    run(some)
    assert [options(some, number, "sample")["model"] for number in (1, 2)] == ["p0", "p0"]
    assert options(some, 2, "train-policy")["model_name_or_path"] == str(some.folder / "round-01/train-policy/model")


@pytest.mark.parametrize(("trained", "generators"), [(0, ["g0", "g0"]), (1, ["round-01", "round-01"])])
def test_a_stale_generator_is_trained_in_the_first_rounds_only(tmp_path: Path, trained: int, generators: list[str]) -> None:
    some = config(tmp_path, generator_rounds=trained, models={"generator": "g0"})
    run(some)
    assert calls(some).count("round-01/train-generator") == trained
    assert "round-02/sample" not in calls(some)
    for number, expected in zip((1, 2), generators, strict=True):
        assert expected in str(options(some, number, "train-policy")["generator"])


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("fail", "round 1 train-generator failed with exit code 3; complete phases are kept"),
        ("die", "round 1 train-generator was ended by SIGKILL (out of memory, perhaps)"),
        ("disk", "is full; make room"),
        ("no-done", "round 1 train-generator failed with exit code 0"),
    ],
)
def test_a_phase_that_fails_is_said_with_the_end_of_its_log_and_tried_again(tmp_path: Path, how: str, message: str) -> None:
    some = config(tmp_path, rounds=1)
    does(some, "train-generator", how)
    with pytest.raises(PhaseError) as caught:
        run(some)
    assert message in str(caught.value)
    assert str(some.folder / "round-01/train-generator/log.txt") in str(caught.value)
    if how == "fail":
        assert str(caught.value).endswith("  | something about tensors\n  | ValueError: the loss is a teapot")
    (some.folder / "train-generator.does").unlink()
    run(some)
    assert calls(some) == ["round-01/sample", "round-01/train-generator", "round-01/train-generator", "round-01/train-policy"]


def test_a_command_that_is_aborted_after_its_work_was_complete_ends_no_run(tmp_path: Path) -> None:
    some = config(tmp_path, rounds=1)
    does(some, "train-policy", "abort at the end")
    assert "note: the command ended with exit code 6 after its work was complete" in run(some)
    assert calls(some) == ["round-01/sample", "round-01/train-generator", "round-01/train-policy"]


def test_a_report_that_cannot_be_written_does_not_end_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(run: Path) -> Path:
        raise KeyError("no such colour")

    monkeypatch.setattr("openrlhf_dynamicrubric.report.write_report", broken)
    output = run(config(tmp_path, rounds=1))
    assert "the report could not be written: KeyError: 'no such colour'" in output
    assert output.splitlines()[-1] == f"Report: {tmp_path / 'run'}"


def test_what_a_phase_printed_cannot_move_the_terminal(tmp_path: Path) -> None:
    some = config(tmp_path, rounds=1)
    does(some, "sample", "escape")
    with pytest.raises(PhaseError) as caught:
        run(some)
    assert "\x1b" not in str(caught.value)
    assert "⟨U+001B⟩[2J" in str(caught.value)


def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    some = config(tmp_path, launch={**LAUNCH, "sample": ["accelerat", "launch"]})
    with pytest.raises(PhaseError, match=r"cannot start accelerat: No such file.*check `launch`"):
        run(some)


def test_what_the_check_finds_stops_the_run_before_any_phase(tmp_path: Path) -> None:
    some = config(tmp_path)
    does(some, "check", json.dumps({"errors": ["policy: too few prompts", "sample: no model"], "notes": ["mind the gap"]}))
    with pytest.raises(ConfigError, match=r"^policy: too few prompts; sample: no model$"):
        run(some)
    assert not (some.folder / "calls.txt").exists()
    does(some, "check", json.dumps({"errors": [], "notes": ["mind the gap"]}))
    assert "note: mind the gap" in run(some)


def test_a_check_that_breaks_stops_the_run_too(tmp_path: Path) -> None:
    some = config(tmp_path)
    does(some, "check", '"crash"')
    with pytest.raises(PhaseError, match=r"the check of the options failed with exit code 1; nothing was begun.*check/log.txt"):
        run(some)


def test_changed_options_are_refused_by_name_and_rounds_may_be_raised(tmp_path: Path) -> None:
    run(config(tmp_path, rounds=1, policy={"beta": 0.01}))
    with pytest.raises(
        ConfigError, match=r"other options: policy.beta: 0.01 -> 0.02; policy.top_p: None -> 0.9. Set them back"
    ):
        run(config(tmp_path, rounds=1, policy={"beta": 0.02, "top_p": 0.9}))
    longer = config(tmp_path, rounds=2, policy={"beta": 0.01}, launch={**LAUNCH, "sample": [*FAKE]}, keep_checkpoints=True)
    run(longer)
    assert len(calls(longer)) == 6
    with pytest.raises(ConfigError, match="rounds: 2 -> 1"):
        run(config(tmp_path, rounds=1, policy={"beta": 0.01}))


def test_data_that_were_edited_since_are_refused(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a"}\n')
    run(config(tmp_path, rounds=1, prompts=str(prompts)))
    prompts.write_text('{"prompt": "b"}\n')
    with pytest.raises(ConfigError, match=r"files of the run in .* were edited since it began: prompts \(.*prompts.jsonl\)"):
        run(config(tmp_path, rounds=2, prompts=str(prompts)))
    prompts.unlink()
    with pytest.raises(ConfigError, match=r"prompts: .*prompts.jsonl is not a file"):
        run(config(tmp_path, rounds=2, prompts=str(prompts)))


def test_rounds_without_their_options_and_another_schema_are_refused(tmp_path: Path) -> None:
    some = config(tmp_path, rounds=1)
    run(some)
    state = json.loads((some.folder / "run.json").read_text())
    (some.folder / "run.json").write_text(json.dumps({**state, "schema": 99}))
    with pytest.raises(ConfigError, match="has schema 99, this version reads 1"):
        run(some)
    (some.folder / "run.json").unlink()
    with pytest.raises(ConfigError, match=r"holds rounds but no run\.json"):
        run(some)


def test_complete_phases_have_to_come_first_and_to_have_their_artefacts(tmp_path: Path) -> None:
    some = config(tmp_path, rounds=1)
    run(some)
    (some.folder / "round-01/sample/done.json").unlink()
    with pytest.raises(
        PhaseError, match="round 1 train-generator is complete although round 1 sample, on which it builds, is not"
    ):
        run(some)
    (some.folder / "round-01/sample/done.json").write_text("{}")
    (some.folder / "round-01/sample/responses.jsonl").unlink()
    with pytest.raises(PhaseError, match=r"responses.jsonl has gone; to make it again, remove"):
        run(some)


@pytest.mark.parametrize("keep", [False, True])
def test_checkpoints_go_when_their_phase_is_complete_unless_they_are_wanted(tmp_path: Path, keep: bool) -> None:
    some = config(tmp_path, rounds=1, keep_checkpoints=keep)
    run(some)
    assert len(list(some.folder.rglob("checkpoint-*"))) == (3 if keep else 0)
    run(config(tmp_path, rounds=1))
    assert not list(some.folder.rglob("checkpoint-*"))


def test_a_second_orchestrator_is_refused(tmp_path: Path) -> None:
    some = config(tmp_path)
    with locked(some.folder / ".lock") as free:
        assert free
        with pytest.raises(PhaseError, match="another process is at work on the run in"):
            run(some)


def test_a_phase_of_an_earlier_start_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = config(tmp_path, rounds=1)
    coevolution._begin_or_continue(some)
    code = """
import sys, time
from pathlib import Path
from openrlhf_dynamicrubric.files import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(600)
"""
    lock = some.folder / "round-01/sample/.lock"
    holder = subprocess.Popen([sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout
        assert holder.stdout.readline() == b"locked\n"
        monkeypatch.setattr(coevolution, "ORPHAN_SECONDS", 0.5)
        with pytest.raises(PhaseError, match=r"another process is still at work in .*round-01/sample after 0 s"):
            run(some)
        monkeypatch.setattr(coevolution, "ORPHAN_SECONDS", 30.0)
        threading.Timer(0.7, holder.kill).start()
        assert "a process of an earlier start still works" in run(some)
    finally:
        holder.kill()
        holder.wait()


def write_config(folder: Path, **values: object) -> Path:
    path = folder / "run.yaml"
    path.write_text(json.dumps({"output_dir": str(folder / "run"), "launch": LAUNCH, **values}))
    return path


def start(path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "openrlhf_dynamicrubric", "coevolve", "--config", str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_phase_and_leaves_a_run_that_goes_on(tmp_path: Path, number: signal.Signals) -> None:
    some = config(tmp_path, rounds=1)
    does(some, "train-policy", "hang")
    process = start(write_config(tmp_path, rounds=1))
    folder = some.folder / "round-01/train-policy"
    wait_for(lambda: list(folder.glob("pid-*")))
    [pid] = [int(path.name.removeprefix("pid-")) for path in folder.glob("pid-*")]
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert errors == "error: stopped; the same command goes on from here\n"
    wait_for(lambda: not alive(pid))
    (some.folder / "train-policy.does").unlink()
    run(some)
    assert calls(some) == [f"round-01/{kind}" for kind in (*phases.KINDS, "train-policy")]


@pytest.mark.parametrize("launcher", ["none", "plain", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_a_phase_ends_with_an_orchestrator_that_is_killed(tmp_path: Path, launcher: str) -> None:
    words, ranks = FAKE, 1
    if launcher == "plain":  # as accelerate starts a single process, and knows nothing of signals
        code = "import subprocess, sys; sys.exit(subprocess.Popen([sys.executable, *sys.argv[1:]]).wait())"
        words = [sys.executable, "-c", code, FAKE[1]]
    if launcher == "torchrun":
        words, ranks = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", FAKE[1]], 2
    some = config(tmp_path, rounds=1)
    does(some, "sample", "hang")
    process = start(write_config(tmp_path, rounds=1, launch={**LAUNCH, "sample": words}))
    folder = some.folder / "round-01/sample"
    wait_for(lambda: len(list(folder.glob("pid-*"))) == ranks, seconds=60)
    pids = [int(path.name.removeprefix("pid-")) for path in folder.glob("pid-*")]
    assert all(map(alive, pids))
    process.kill()
    process.communicate()
    wait_for(lambda: not any(map(alive, pids)), seconds=60)


def test_errors_of_a_run_are_sentences_with_exit_code_1(tmp_path: Path) -> None:
    does(config(tmp_path), "sample", "fail")
    process = start(write_config(tmp_path))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.startswith(
        "error: round 1 sample failed with exit code 3; complete phases are kept; the same command goes on"
    )
    assert "Traceback" not in errors


def test_options_that_the_check_refused_can_be_mended(tmp_path: Path) -> None:
    some = config(tmp_path, rounds=1, policy={"beta": 2.0})
    some.folder.mkdir(parents=True, exist_ok=True)
    (some.folder / "check.does").write_text(json.dumps({"errors": ["beta is too large"], "notes": []}))
    with pytest.raises(ConfigError, match="beta is too large"):
        run(some)
    (some.folder / "check.does").unlink()
    run(config(tmp_path, rounds=1, policy={"beta": 0.5}))
    assert options(some, 1, "train-policy")["beta"] == 0.5
