"""Starts a script of this folder as several processes, as torchrun does it or one by one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TIMEOUT = 240


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DYNAMICRUBRIC_")}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", **more}


def torchrun(script: str, *arguments: object, ranks: int) -> str:
    """Runs the script on that many ranks and gives what they wrote to stderr; fails with it if one of them fails."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", str(free_port())]
    done = subprocess.run(
        [*command, str(Path(__file__).with_name(script)), *map(str, arguments)],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stderr


def one_by_one(script: str, *arguments: object, ranks: int) -> list[tuple[int, str]]:
    """Exit code and stderr of each rank, with nobody who would end the others when one fails."""
    port = str(free_port())
    started = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(script)), *map(str, arguments)],
            env=environment(
                RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port
            ),
            cwd=ROOT,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        return [(process.wait(TIMEOUT), process.communicate()[1]) for process in started]
    finally:
        for process in started:
            process.kill()
