"""Records as a real run leaves them, without a model: to test and to look at what reads them."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from openrlhf_dynamicrubric import objectives, scoring
from openrlhf_dynamicrubric.anchors import read_anchors
from openrlhf_dynamicrubric.records import RecordFile, group_record, usage_record
from openrlhf_dynamicrubric.types import Evaluation, ResponseSet, Rubric, RubricItem, Unscorable, Usage, WrittenRubric

CRITERIA = (
    "Answers the request in the form that was asked for",
    "Gives at least one concrete example",
    "Avoids terms that the reader cannot know",
    "States the main point in the first sentence",
    "Stays within the asked length",
    "Avoids claims that are wrong",
    "Names a trade-off or a limit",
    "Ends without repeating itself",
    "Uses plain words",
    "Addresses the reader directly",
    "Orders the steps so that they can be followed",
    "Avoids filler and apologies",
)
USAGE = Usage(calls=1, prompt_tokens=900, completion_tokens=120, seconds=1.5)
REASONS = (
    "cut off after 1024 tokens",
    "weights must be whole numbers 1..5, got 7 in item 2",
    "item 3 names a response by its position: 'Response 2'",
)


def evaluation(response_set: ResponseSet, rng: random.Random, *, spread: float) -> Evaluation:
    """A scored set: items split the responses the more, the larger the spread (0..1) is."""
    criteria = rng.sample(CRITERIA, rng.randint(3, 7))
    rubric = Rubric(tuple(RubricItem(criterion, rng.randint(1, 5)) for criterion in criteria))
    distinct = {text: [rng.random() for _ in criteria] for text in response_set.responses}
    levels = [rng.choice((0.12, 0.88)) if rng.random() > spread else 0.5 for _ in criteria]
    probabilities_MK = np.array(
        [
            [min(1, max(0, levels[m] + (distinct[text][m] - 0.5) * 0.7)) for text in response_set.responses]
            for m in range(len(criteria))
        ]
    )
    verdicts_MK = (probabilities_MK >= 0.5).astype(np.float64)
    text = json.dumps({"items": [{"criterion": item.criterion, "weight": item.weight} for item in rubric.items]})
    rejected = (rng.choice(REASONS),) if rng.random() < 0.1 else ()
    dropped = rng.random() < 0.05
    size = len(response_set.responses)
    return Evaluation(
        response_set=response_set,
        rubric=rubric,
        probabilities_MK=probabilities_MK,
        verdicts_MK=verdicts_MK,
        scores_K=scoring.response_scores(rubric.weights_M, verdicts_MK),
        dropped=(RubricItem("Cites a source", 2),) if dropped else (),
        dropped_probabilities=((float("nan"),) * size,) if dropped else (),
        failures=("timeout after 60 s",) if dropped else (),
        written=WrittenRubric(rubric, text, tuple(range(size)), rejected, 0, USAGE, ('{"items": [{"cri',) * len(rejected)),
        verifier_usage=Usage(verdicts_MK.size, 300 * verdicts_MK.size, 240 * verdicts_MK.size, 0, 2.0),
        cached_verdicts=3,
    )


def unscorable(response_set: ResponseSet, rng: random.Random) -> Unscorable:
    """A set without scores."""
    if rng.random() < 0.3:
        return Unscorable(response_set, "verifier_call", "no item has all its verdicts; timeout after 60 s", failed_verdicts=9)
    reason = rng.choice(REASONS)
    message = f"no valid rubric in 3 attempts; the last: {reason}"
    texts = ('{"items": [{"criterion": "Uses', "no JSON at all", "{}")
    return Unscorable(response_set, "invalid_rubric", message, (reason,) * 3, USAGE, rejected_texts=texts)


def rubric_rows(response_set: ResponseSet, rng: random.Random, *, size: int, skill: float) -> list[dict[str, Any]]:
    """G rubrics sampled in training for one set; anchors come the better into order, the larger the skill (0..1) is."""
    rows: list[dict[str, Any]] = []
    count = len(response_set.anchors)
    for member in range(size):
        base = {
            "kind": "rubric",
            "id": response_set.id,
            "member": member,
            "mode": "train",
            "outage": None,
            "failed_verdicts": 0,
        }
        usage = usage_record(Usage(40, 12_000, 9_000, 0, 1.0) if member == 0 else Usage())
        if rng.random() < 0.25 * (1 - skill):
            empty = dict.fromkeys(
                ("verdicts", "anchor_verdicts", "probabilities", "anchor_probabilities", "scores", "anchor_scores")
            )
            floor = objectives.anchor_ranking_floor(count)
            rows.append(
                {
                    **base,
                    **empty,
                    "rubric_text": '{"items": [',
                    "invalid": rng.choice(REASONS),
                    "items": [],
                    "dropped": [],
                    "disc": 0.0,
                    "anchor": floor,
                    "verifier_usage": usage,
                }
            )
            continue
        judged = evaluation(response_set, rng, spread=skill)
        weights = judged.rubric.weights_M
        anchors_MN = np.array(
            [[float(rng.random() < 0.5 + skill * (0.45 - 0.9 * n / (count - 1))) for n in range(count)] for _ in weights]
        )
        anchor_scores = scoring.response_scores(weights, anchors_MN)
        record = group_record(judged)
        rows.append(
            {
                **base,
                **{name: record[name] for name in ("rubric_text", "items", "dropped", "verdicts", "probabilities", "scores")},
                "invalid": None,
                "anchor_verdicts": anchors_MN.astype(int).tolist(),
                "anchor_probabilities": (0.2 + 0.6 * anchors_MN).tolist(),
                "anchor_scores": anchor_scores.tolist(),
                "disc": objectives.discriminability(weights, judged.verdicts_MK),
                "anchor": objectives.anchor_ranking(anchor_scores),
                "verifier_usage": usage,
            }
        )
    advantages = objectives.combine_advantages([row["disc"] for row in rows], [row["anchor"] for row in rows])
    return [{**row, "advantage": float(advantage)} for row, advantage in zip(rows, advantages, strict=True)]


def write_run(
    folder: Path,
    *,
    rounds: int = 2,
    steps: int = 12,
    groups: int = 2,
    size: int = 8,
    seed: int = 0,
    fail_at: tuple[int, str] | None = None,
) -> Path:
    """A run folder; with `fail_at` = (round, phase) it ends inside that phase."""
    rng = random.Random(seed)
    anchors = read_anchors("demo")
    config = {
        "rounds": rounds,
        "seed": seed,
        "models": {"policy": "embedded", "generator": "embedded", "verifier": "embedded"},
        "generator": {"num_generations": 4},
        "policy": {"num_generations": size},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"schema": 1, "version": "0.1.0", "config": config}))
    for number in range(1, rounds + 1):
        for kind in ("sample", "train-generator", "train-policy"):
            phase = folder / f"round-{number:02d}" / kind
            phase.mkdir(parents=True)
            failed = fail_at == (number, kind)
            done = steps // 2 if failed else steps
            progress = {"phase": kind, "step": done, "total": steps, "unit": "steps", "started": time.time() - 40.0}
            (phase / "progress.json").write_text(json.dumps(progress))
            if kind == "sample":
                rows = [
                    {
                        "id": row["id"],
                        "prompt": row["prompt"],
                        "responses": _responses(row, rng, size),
                        "anchors": row["anchors"],
                    }
                    for row in anchors
                ]
                (phase / "responses.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            else:
                _write_training(phase, number, kind, anchors, rng, steps=done, groups=groups, size=size)
            if failed:
                (phase / "log.txt").write_text(
                    "loading model\nstep 6\nTraceback (most recent call last):\nRuntimeError: out of <memory>\n"
                )
                return folder
            (phase / "done.json").write_text(json.dumps({"seconds": 61.0 + number}))
    return folder


def _responses(row: dict[str, Any], rng: random.Random, size: int) -> list[str]:
    return [rng.choice(row["anchors"]) for _ in range(size)]


def _write_training(
    phase: Path,
    number: int,
    kind: str,
    anchors: list[dict[str, Any]],
    rng: random.Random,
    *,
    steps: int,
    groups: int,
    size: int,
) -> None:
    file = RecordFile(phase / "records" / ("groups.jsonl" if kind == "train-policy" else "rubrics.jsonl"))
    metrics = RecordFile(phase / "records" / "metrics.jsonl")
    for step in range(steps):
        progress = (number - 1 + step / steps) / 2
        rows: list[dict[str, Any]] = []
        for _ in range(groups):
            row = rng.choice(anchors)
            response_set = ResponseSet(row["prompt"], tuple(_responses(row, rng, size)), tuple(row["anchors"]), row["id"])
            if kind == "train-generator":
                rows += rubric_rows(response_set, rng, size=4, skill=0.2 + 0.6 * progress)
            elif rng.random() < 0.06:
                rows.append({**group_record(unscorable(response_set, rng)), "mode": "train"})
            else:
                rows.append({**group_record(evaluation(response_set, rng, spread=0.3 + 0.5 * progress)), "mode": "train"})
        file.append(rows, step=step)
        log = {
            "reward": 0.5 + rng.gauss(0, 0.05),
            "completions/mean_length": 60 + 20 * progress + rng.gauss(0, 3),
            "step_time": 20 + rng.gauss(0, 1),
            "dynamicrubric/seconds": 8 + rng.gauss(0, 1),
            "dynamicrubric/item_diversity": 0.8 - 0.2 * progress,
            "loss": rng.gauss(0, 0.01),
            "entropy": 2.0 - progress,
        }
        metrics.append([{"kind": "metrics", **log}], step=step + 1)
