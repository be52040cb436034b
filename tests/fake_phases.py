"""A stand-in for the commands of a run that takes milliseconds: `python fake_phases.py openrlhf_dynamicrubric KIND ...`.

What it does besides is decided by files in the run's folder, named `KIND.does`: see `misbehave`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import yaml

from openrlhf_dynamicrubric import processes
from openrlhf_dynamicrubric.files import write_atomic


def main(argv: list[str]) -> int:
    processes.follow_leader()
    kind = argv[1]
    if kind == "check":
        return check(argv)
    options = yaml.safe_load(Path(argv[argv.index("--config") + 1]).read_text())
    folder = Path(options["output_dir"]) if "output_dir" in options else Path(options["output"]).parent
    run = folder.parent.parent
    with (run / "calls.txt").open("a") as file:
        file.write(f"{folder.relative_to(run)}\n")
    for number in range(3):
        state = {"phase": kind, "unit": "steps", "first": 0, "step": number, "total": 3, "started": 0.0, "updated": number}
        write_atomic(folder / "progress.json", json.dumps(state))
    with processes.sole_worker(folder / ".lock"):
        does = run / f"{kind}.does"
        if does.exists():
            misbehave(does.read_text(), folder)
        artefact = folder / ("responses.jsonl" if kind == "sample" else "model/model.safetensors")
        write_atomic(artefact, json.dumps(options, sort_keys=True))
        (folder / "checkpoint-1").mkdir(exist_ok=True)
        write_atomic(folder / "done.json", json.dumps({"command": kind, "seconds": 1.5, "sha256": "0"}))
    return 6 if does.exists() and does.read_text() == "abort at the end" else 0


def check(argv: list[str]) -> int:
    run = Path(argv[2])
    does = run / "check.does"
    found = json.loads(does.read_text()) if does.exists() else {"errors": [], "notes": []}
    if found == "crash":
        raise RuntimeError("the check itself is broken")
    write_atomic(Path(argv[argv.index("--result") + 1]), json.dumps(found))
    return 0


def misbehave(how: str, folder: Path) -> None:
    if how == "fail":
        print("something about tensors\nValueError: the loss is a teapot")
        sys.exit(3)
    if how == "escape":
        print("\x1b[2Jgone")
        sys.exit(1)
    if how == "disk":
        print("OSError: [Errno 28] No space left on device")
        sys.exit(1)
    if how == "die":
        os.kill(os.getpid(), 9)
    if how == "no-done":
        sys.exit(0)
    if how == "hang":
        (folder / f"pid-{os.getpid()}").touch()
        time.sleep(600)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
