"""Verdicts question by question against verdicts behind one shared prefix: same model, same process, same machine.

K responses are judged by M criteria. The naive way computes each of the K x M sequences whole, in batches of equal length
under the token budget and with logits for the last position only: the fairest form of one forward pass a criterion. The
shared way is what judging uses: x and the response once, then all criteria behind them. Both run in turns; medians count.
CPU seconds are those of this process: where other work loads the machine, they vary less than the clock on the wall.

    python benchmarks/verification.py            # the embedded model, K = 8, M = 8, 200-token responses, float32
    python benchmarks/verification.py --help
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import os
import platform
import statistics
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from openrlhf_dynamicrubric.llm.base import Judgement
from openrlhf_dynamicrubric.llm.embedded import resolve_model
from openrlhf_dynamicrubric.llm.transformers_local import TransformersModel
from openrlhf_dynamicrubric.verifier import verifier_prompt, verifier_question

REQUEST = "Explain to a child why the sky is blue by day and red in the evening."
SENTENCES = (
    "Sunlight looks white, but it is made of all the colours of the rainbow.",
    "When it meets the air, the tiny molecules scatter the short blue waves far more than the long red ones.",
    "So blue light comes to your eyes from every side, and the whole sky seems to glow.",
    "In the evening the light has a longer way through the air, and most of the blue is gone before it arrives.",
    "What is left is orange and red, as if somebody had sieved the light.",
    "You can try it with a torch and a glass of water with a drop of milk.",
)
CRITERIA = (
    "Says that sunlight is made of many colours",
    "Explains that short waves scatter more than long ones",
    "Explains the red evening sky by the longer way through the air",
    "Uses words that a child of eight understands",
    "Gives an example or an experiment to try at home",
    "Avoids formulas and technical terms without an explanation",
    "Is organised so that one thought follows from another",
    "Avoids claims that are wrong",
)
TARGET_RATIO, TARGET_DIFFERENCE = 3.0, 1e-4
PACKAGES = ("torch", "transformers", "openrlhf_dynamicrubric")


def responses(model: TransformersModel, count: int, tokens: int) -> list[str]:
    """Different texts of so many tokens each."""
    texts = []
    for number in range(count):
        turned = SENTENCES[number % len(SENTENCES) :] + SENTENCES[: number % len(SENTENCES)]
        ids = model.tokenizer(" ".join([f"Answer {number}.", *turned * (tokens // 80 + 1)]))["input_ids"]
        texts.append(str(model.tokenizer.decode(ids[:tokens])))
    return texts


@dataclass(frozen=True)
class Run:
    """One way of judging, once: the judgements of all responses, and what they took."""

    judgements: list[Judgement]
    seconds: float
    cpu_seconds: float

    @property
    def tokens(self) -> int:
        """Tokens that went through the model."""
        return sum(judgement.usage.prompt_tokens - judgement.usage.cached_tokens for judgement in self.judgements)

    @property
    def probabilities(self) -> list[float]:
        values = [answer for judgement in self.judgements for answer in judgement.probabilities]
        if any(isinstance(value, Exception) for value in values):
            raise SystemExit(f"a verdict failed: {next(value for value in values if isinstance(value, Exception))}")
        return [float(value) for value in values]  # type: ignore[arg-type]


def judge(model: TransformersModel, shared: list[str], questions: list[str]) -> Run:
    """All responses asked at once."""

    async def all_at_once() -> list[Judgement]:
        return list(await asyncio.gather(*(model.yes_probabilities(text, questions) for text in shared)))

    started, cpu_started = time.perf_counter(), time.process_time()
    judgements = asyncio.run(all_at_once())
    return Run(judgements, time.perf_counter() - started, time.process_time() - cpu_started)


def machine() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    load = f", load {os.getloadavg()[0]:.1f} at the start" if hasattr(os, "getloadavg") else ""
    return f"{names[0] if names else platform.processor() or platform.machine()}, {os.cpu_count()} CPUs{load}"


def measure(arguments: argparse.Namespace) -> int:
    import torch

    surroundings = machine()
    model = TransformersModel.load(
        resolve_model(arguments.model), dtype=arguments.dtype, name=arguments.model, batch_tokens=arguments.batch_tokens
    )
    texts = responses(model, arguments.responses, arguments.response_tokens)
    shared = [verifier_prompt(REQUEST, text, max_response_chars=10**9) for text in texts]
    questions = [verifier_question(CRITERIA[m % len(CRITERIA)] + " " * (m // len(CRITERIA))) for m in range(arguments.criteria)]
    judge(model, shared[:1], questions[:2])  # once for the example that decides whether sharing works, and for warm caches
    if not model.shares_prefixes:
        raise SystemExit(f"{arguments.model} cannot share prefixes: there is nothing to compare")
    naive: list[Run] = []
    sharing: list[Run] = []
    for _ in range(arguments.repeats):
        for shares, runs in ((False, naive), (True, sharing)):
            model.shares_prefixes = shares
            runs.append(judge(model, shared, questions))
    difference = max(abs(a - b) for a, b in zip(naive[0].probabilities, sharing[0].probabilities, strict=True))
    settings = f"{arguments.response_tokens} tokens; {str(model.model.dtype).removeprefix('torch.')}"
    threads = f"{torch.get_num_threads()} threads (OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS')})"
    title = f"{arguments.model}: {arguments.responses} responses x {arguments.criteria} criteria"
    console = Console(width=110)
    console.print(as_table(title, {"naive": naive, "shared": sharing}))
    ratio = median_seconds(naive) / median_seconds(sharing)
    cpu_ratio = median_cpu_seconds(naive) / median_cpu_seconds(sharing)
    bound = naive[0].tokens / sharing[0].tokens
    for name, value in (
        ("ratio", f"{ratio:.2f} (target: at least {TARGET_RATIO:g}); of CPU seconds {cpu_ratio:.2f}"),
        (
            "token-count bound",
            f"{bound:.2f}; reached {100 * ratio / bound:.0f} % of it, in CPU seconds {100 * cpu_ratio / bound:.0f} %",
        ),
        ("largest difference", f"{difference:.1e} of P(yes) (target: at most {TARGET_DIFFERENCE:g})"),
        ("responses", settings),
        ("machine", f"{surroundings}; {threads}"),
        ("versions", f"Python {platform.python_version()}, {', '.join(f'{name} {version(name)}' for name in PACKAGES)}"),
        ("date", str(datetime.date.today())),
    ):
        console.print(f"{name:<20} {value}", highlight=False)
    return 0 if ratio >= TARGET_RATIO and difference <= TARGET_DIFFERENCE else 1


def median_seconds(runs: list[Run]) -> float:
    return statistics.median(run.seconds for run in runs)


def median_cpu_seconds(runs: list[Run]) -> float:
    return statistics.median(run.cpu_seconds for run in runs)


def as_table(title: str, ways: dict[str, list[Run]]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("", "seconds (median)", "all runs", "CPU seconds", "tokens computed", "tokens a CPU second"):
        table.add_column(name, justify="right" if name else "left")
    for name, runs in ways.items():
        tokens, cpu_seconds = runs[0].tokens, median_cpu_seconds(runs)
        every = " ".join(f"{run.seconds:.1f}" for run in runs)
        table.add_row(
            name, f"{median_seconds(runs):.2f}", every, f"{cpu_seconds:.2f}", f"{tokens:,}", f"{tokens / cpu_seconds:,.0f}"
        )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded", help="`embedded`, a folder, or a hub name")
    parser.add_argument("--dtype", default="float32", choices=("auto", "float32", "bfloat16", "float16"))
    parser.add_argument("--responses", type=int, default=8, help="K")
    parser.add_argument("--criteria", type=int, default=8, help="M")
    parser.add_argument("--response-tokens", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-tokens", type=int, default=16_384)
    return measure(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
