from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from openrlhf_dynamicrubric import __version__, cli
from openrlhf_dynamicrubric.errors import ConfigError

PROGRAM = [sys.executable, "-m", "openrlhf_dynamicrubric"]


def call(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *words], capture_output=True, text=True, check=False, timeout=120)


def test_help_and_version_load_no_framework() -> None:
    code = """
import sys
from openrlhf_dynamicrubric.cli import main
try:
    main(["--help"])
except SystemExit as end:
    assert end.code == 0
heavy = {"torch", "transformers", "trl", "matplotlib", "yaml", "datasets"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for command in cli.COMMANDS:
        assert f"\n  {command}" in done.stdout
    assert call("--version").stdout == f"{__version__}\n"


@pytest.mark.parametrize("words", [(), ("evolve",), ("--evolve",)])
def test_what_is_no_command_shows_the_usage(words: tuple[str, ...]) -> None:
    done = call(*words)
    assert done.returncode == 2
    assert "usage: dynamicrubric" in done.stderr


def test_errors_are_one_line_without_a_traceback(tmp_path: Path) -> None:
    done = call("coevolve", "--config", str(tmp_path / "none.yaml"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: {tmp_path}/none.yaml cannot be read: No such file or directory\n"


def test_a_missing_package_is_said_with_its_install_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'trl'", name="trl.trainer")

    monkeypatch.setattr(cli.importlib, "import_module", missing)
    assert cli.main(["sample"]) == 1
    assert capsys.readouterr().err == "error: sample needs trl: pip install 'openrlhf_dynamicrubric[trl]'\n"


def test_a_mistake_of_ours_stays_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'openrlhf_dynamicrubric.typo'", name="openrlhf_dynamicrubric.typo")

    monkeypatch.setattr(cli.importlib, "import_module", missing)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["sample"])


def test_markup_in_a_message_is_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Broken:
        @staticmethod
        def main(argv: list[str]) -> int:
            raise ConfigError("launch [red]x[/red] [a, b]\nlast [line]")

    monkeypatch.setattr(cli.importlib, "import_module", lambda name: Broken)
    assert cli.main(["coevolve"]) == 1
    assert capsys.readouterr().err == "error: launch [red]x[/red] [a, b]\nlast [line]\n"


def test_report_and_its_help(tmp_path: Path) -> None:
    done = call("report", str(tmp_path / "nothing"))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert call("report", "--help").returncode == 0


@pytest.mark.parametrize(
    ("command", "usage", "does"),
    [
        ("sample", "[-h] [--config FILE.yaml] [--OPTION VALUE ...]", "the policy answers every anchor prompt K times."),
        (
            "train-generator",
            "[-h] [--help-all] [--config FILE.yaml] [--OPTION VALUE ...]",
            "trains the rubric generator on response sets with ranked anchors.",
        ),
        (
            "train-policy",
            "[-h] [--help-all] [--config FILE.yaml] [--OPTION VALUE ...]",
            "TRL's GRPOTrainer with DynamicRubric as its reward, the generator frozen.",
        ),
    ],
)
def test_help_of_a_phase_names_it_and_its_config(
    command: str, usage: str, does: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    with pytest.raises(SystemExit) as end:
        cli.main([command, "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: dynamicrubric {command} {usage}\n\n`dynamicrubric {command}`: {does}\n")
    config = "YAML file whose keys have the same names as the flags, without the dashes; flags win over it"
    assert f"\n  --config FILE.yaml    {config}\n" in shown
    assert shown.index("--config FILE.yaml   ") < shown.index(f"\noptions of dynamicrubric {command}:\n")
    assert "GRPOConfig:" not in shown
    assert len(shown.splitlines()) < 80


def test_help_of_check_names_the_kinds_of_phases(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit):
        cli.main(["check", "--help"])
    shown = capsys.readouterr().out
    assert shown.startswith("usage: dynamicrubric check [-h] [--result RESULT] run [kind ...]\n")
    assert "\n  kind             sample, train-generator, train-policy; default all\n" in shown
