"""Rounds of sampling, generator training and policy training: commands run one after another, with state on disk."""

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from openrlhf_dynamicrubric import anchors, phases, processes, terminal
from openrlhf_dynamicrubric.display import visible
from openrlhf_dynamicrubric.errors import ConfigError, DynamicRubricError, PhaseError
from openrlhf_dynamicrubric.files import locked, write_atomic
from openrlhf_dynamicrubric.phases import Phase
from openrlhf_dynamicrubric.run_config import RunConfig, changed_keys, config_values, load_run_config

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = 1
MAY_CHANGE = ("rounds", "launch.", "keep_checkpoints")
"""Options of which a run's result does not depend on when they are changed."""

ORPHAN_SECONDS = 60.0
"""How long a phase of an earlier start may take to end."""


def main(argv: Sequence[str]) -> int:
    """`dynamicrubric coevolve --config FILE.yaml [--set key.sub=value ...]`."""
    from rich.console import Console

    parser = argparse.ArgumentParser(prog="dynamicrubric coevolve", description=__doc__)
    parser.add_argument("--config", required=True, metavar="FILE.yaml", help="options of the run; see examples/cpu.yaml")
    parser.add_argument(
        "--set", action="append", default=[], metavar="key.sub=value", dest="overrides", help="one option over the file's"
    )
    options = parser.parse_args(argv)
    coevolve(load_run_config(options.config, options.overrides), console=Console())
    return 0


def coevolve(config: RunConfig, *, console: Console) -> Path:
    """A whole run, or the rest of one: every phase that is not complete, in order.

    Args:
        config: all options.
        console: where progress is shown.

    Returns:
        The report, or the run's folder where none could be written.

    Raises:
        ConfigError: options that cannot work, or that are not those of the run in this folder.
        PhaseError: another process works on this run, or a phase failed. What is complete is kept; the same call goes on.
    """
    plan = phases.plan(config)
    try:
        with locked(config.folder / phases.LOCK) as free:
            if not free:
                raise PhaseError(f"another process is at work on the run in {config.folder}; wait for it, or end it")
            with _terminated_like_interrupted():
                _begin_or_continue(config)
                return _run(config, plan, console)
    except OSError as error:  # a full disk, or a folder that cannot be written
        raise PhaseError(f"{error.filename or config.folder}: {error.strerror or error}; complete phases are kept") from None


def _run(config: RunConfig, plan: Sequence[Phase], console: Console) -> Path:
    pending = [phase for phase in plan if not phase.complete]
    _check_order(plan)
    rounds = f"{config.rounds} round{'s' if config.rounds > 1 else ''}"
    _say(console, f"{config.folder}: {rounds}, {len(plan) - len(pending)} of {len(plan)} phases complete")
    for phase in plan:
        _drop_checkpoints(config, phase)
    if pending:
        _check(config, pending, console)
    try:
        for phase in pending:
            _run_phase(config, plan, phase, console)
            if phase.kind == phases.TRAIN_POLICY:
                _report(config, console)
    except DynamicRubricError:
        if any(config.folder.rglob("records/*.jsonl")):
            _report(config, console)
        raise
    report = _report(config, console, plan)
    _say(console, f"Report: {report}")
    return report


def _begin_or_continue(config: RunConfig) -> None:
    """The run's options on disk are these, or those of an earlier start that these may continue."""
    state = config.folder / "run.json"
    now = {"schema": SCHEMA, "version": _version(), "config": config_values(config), "inputs": _digests(config)}
    begun = any(config.folder.glob("round-*"))
    if state.exists() and begun:  # before the first phase, options may still be mended
        _check_same_run(state, now)
    elif not state.exists() and begun:
        raise ConfigError(f"{config.folder} holds rounds but no run.json that says how they came about; use another output_dir")
    write_atomic(state, json.dumps(now, indent=2, ensure_ascii=False) + "\n")


def _check_same_run(state: Path, now: dict[str, Any]) -> None:
    before = phases.read_json(state)
    if before.get("schema") != SCHEMA:
        raise ConfigError(f"{state} has schema {before.get('schema')!r}, this version reads {SCHEMA}; use another output_dir")
    changed = [
        f"{key}: {old!r} -> {new!r}"
        for key, old, new in changed_keys(before["config"], now["config"])
        if not key.startswith(MAY_CHANGE) or (key == "rounds" and new < old)
    ]
    if changed:
        raise ConfigError(
            f"the run in {state.parent} was begun with other options: {'; '.join(changed)}. "
            "Set them back, or use another output_dir (rounds may be raised; launch and keep_checkpoints may change)"
        )
    edited = [key for key, _, _ in changed_keys(before["inputs"], now["inputs"])]
    if edited:
        names = ", ".join(f"{key} ({now['config'][key]})" for key in edited)
        raise ConfigError(f"files of the run in {state.parent} were edited since it began: {names}; use another output_dir")


def _digests(config: RunConfig) -> dict[str, str]:
    """What the data files hold, so that a run is not continued on other data."""
    digests = {}
    for name in ("anchors", "prompts"):
        path = anchors.data_path(getattr(config, name))
        if not path.is_file():
            raise ConfigError(f"{name}: {path} is not a file")
        with path.open("rb") as file:
            digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def _check_order(plan: Sequence[Phase]) -> None:
    """Complete phases come first, and what they made is there."""
    missing: Phase | None = None
    for phase in plan:
        if not phase.complete:
            missing = missing or phase
        elif missing:
            raise PhaseError(
                f"{phase.name} is complete although {missing.name}, on which it builds, is not; "
                f"to repeat from there, remove {phase.folder} and all later ones"
            )
        elif not phase.artefact.exists():
            raise PhaseError(f"{phase.artefact} has gone; to make it again, remove {phase.folder} and all later ones")


def _check(config: RunConfig, pending: Sequence[Phase], console: Console) -> None:
    """The commands themselves read their options and data, before any of them trains."""
    folder = config.folder / "check"
    folder.mkdir(exist_ok=True)
    for words in dict.fromkeys(phase.words for phase in pending):
        kinds = dict.fromkeys(phase.kind for phase in pending if phase.words == words)
        result = folder / "result.json"
        result.unlink(missing_ok=True)
        command = [*words, "check", str(config.folder), *kinds, "--result", str(result)]
        log = folder / phases.LOG
        log.unlink(missing_ok=True)
        started = time.monotonic()
        code = _run_command(command, log, terminal.Watch(console, f"checking {', '.join(kinds)}"), folder / phases.PROGRESS)
        found = phases.read_json(result)
        if "errors" not in found:
            raise _failure("the check of the options", code, log, kept="nothing was begun")
        for note in found["notes"]:
            _say(console, f"note: {note}")
        if found["errors"]:
            raise ConfigError("; ".join(found["errors"]))
        _say(console, f"checked {', '.join(kinds)} in {terminal.clock(time.monotonic() - started)}")


def _run_phase(config: RunConfig, plan: Sequence[Phase], phase: Phase, console: Console) -> None:
    position = plan.index(phase)
    _say(console, f"round {phase.round}/{config.rounds} {phase.kind} (phase {position + 1}/{len(plan)})", style="bold")
    _say(console, f"  {shlex.join(phase.command)}", style="dim")
    _wait_for_orphan(phase, console)
    spent: dict[str, list[float]] = {}
    for earlier in plan[:position]:
        spent.setdefault(earlier.kind, []).append(float(phases.read_json(earlier.folder / phases.DONE).get("seconds", 0)))
    watch = terminal.Watch(
        console,
        f"round {phase.round}/{config.rounds} {phase.kind}",
        kind=phase.kind,
        later=[later.kind for later in plan[position + 1 :]],
        spent=spent,
    )
    log = phase.folder / phases.LOG
    phase.write_options()
    (phase.folder / phases.PROGRESS).unlink(missing_ok=True)
    code = _run_command(phase.command, log, watch, phase.folder / phases.PROGRESS)
    if not phase.complete:
        raise _failure(phase.name, code, log, kept="complete phases are kept; the same command goes on from here")
    if code != 0:  # a launcher's process that was aborted as it ended, say: `done.json` is written last, after all ranks
        _say(console, f"  note: the command ended with exit code {code} after its work was complete; see {log}")
    _drop_checkpoints(config, phase)
    _say(console, f"  complete in {terminal.clock(time.monotonic() - watch.started)}")


def _wait_for_orphan(phase: Phase, console: Console) -> None:
    """A process of an orchestrator that was killed has ended too."""
    lock = phase.folder / phases.LOCK
    if processes.wait_until_free(lock, patience=0.0):
        return
    _say(console, f"  a process of an earlier start still works in {phase.folder}; waiting for its end")
    if not processes.wait_until_free(lock, patience=ORPHAN_SECONDS):
        raise PhaseError(
            f"another process is still at work in {phase.folder} after {ORPHAN_SECONDS:.0f} s; end it and start again"
        )


def _run_command(command: Sequence[str], log: Path, watch: terminal.Watch, progress: Path) -> int:
    """The command's exit code; an interrupt ends the command first."""
    with log.open("ab") as file:
        process = processes.start(command, file)  # before the display, whose thread a fork should not meet
        try:
            with watch.shown():
                while True:
                    try:
                        return process.wait(0.1)
                    except subprocess.TimeoutExpired:
                        watch.update(phases.read_json(progress))
        finally:
            if process.poll() is None:
                processes.stop(process)


def _failure(name: str, code: int, log: Path, *, kept: str) -> PhaseError:
    lines = terminal.tail(log)
    if code < 0:
        how = f"was ended by {signal.Signals(-code).name}"
        how += " (out of memory, perhaps)" if -code == signal.SIGKILL else ""
    else:
        how = f"failed with exit code {code}"
    if _disk_full(lines):
        how += f": the disk of {log.parent} is full; make room"
    shown = "\n".join(f"  | {visible(line)}" for line in lines)
    return PhaseError(f"{name} {how}; {kept}. Last lines of {log}:\n{shown}")


def _disk_full(lines: Sequence[str]) -> bool:
    """What Python, safetensors and torch say of a full disk."""
    signs = ("No space left on device", f"os error {errno.ENOSPC})", "PytorchStreamWriter failed writing file")
    return any(sign in line for line in lines for sign in signs)


def _drop_checkpoints(config: RunConfig, phase: Phase) -> None:
    if phase.complete and not config.keep_checkpoints:
        for checkpoint in phase.folder.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)


def _report(config: RunConfig, console: Console, plan: Sequence[Phase] = ()) -> Path:
    """The report, and the table of a plan; the run's folder where it could not be written."""
    try:
        if plan:
            for table in terminal.summary_tables(plan, width=console.width):
                console.print(table)
            _say(console, terminal.legend(), style="dim")
        from openrlhf_dynamicrubric.report import write_report

        return write_report(config.folder)
    except Exception as error:  # noqa: BLE001 - whatever it is, days of training must not end for the want of a picture
        _say(console, f"the report could not be written: {type(error).__name__}: {error}")
        return config.folder


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM ends what was started, as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(console: Console, text: str, *, style: str | None = None) -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _version() -> str:
    from openrlhf_dynamicrubric import __version__

    return __version__
