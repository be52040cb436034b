"""The audit trail: every rubric, verdict, score, failure and cost, one JSON object a line."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from openrlhf_dynamicrubric import prompts
from openrlhf_dynamicrubric.files import append_lines, json_line, read_lines, write_atomic
from openrlhf_dynamicrubric.types import Evaluation, ResponseSet, RubricItem, Unscorable, Usage

SCHEMA = 1


class RecordFile:
    """A JSONL file of records; a line is whole or absent, whatever happens to the process.

    Args:
        path: the file; made with the first record.
        context: keys that every record gets, for example phase and round.
    """

    def __init__(self, path: str | Path, **context: Any) -> None:
        self.path = Path(path)
        self.context = context

    def append(self, rows: Sequence[Mapping[str, Any]], *, step: int) -> None:
        """Records of one step, with schema, prompt version and time.

        Raises:
            OSError: they cannot be written; nothing of them is kept.
        """
        head = {"schema": SCHEMA, "prompts": prompts.version(), "step": step, "time": time.time(), **self.context}
        append_lines(self.path, ({**head, **row} for row in rows))

    def drop_from(self, step: int) -> None:
        """Takes away what was recorded at or after a step that is about to be repeated."""
        if self.path.exists():
            kept = [row for row in read_lines(self.path) if row["step"] < step]
            write_atomic(self.path, "".join(json_line(row) for row in kept))


def read_records(folder: str | Path) -> Iterator[dict[str, Any]]:
    """All records under a folder: every `records/*.jsonl`, files in order of their path.

    Raises:
        ValueError: a line in the middle of a file is not JSON; the message names the file.
    """
    for path in sorted(Path(folder).rglob("records/*.jsonl")):
        try:
            yield from read_lines(path)
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}") from None


def group_record(outcome: Evaluation | Unscorable) -> dict[str, Any]:
    """One scored, or unscorable, response set; both have the same keys. See docs/records.md for each of them."""
    scored = outcome if isinstance(outcome, Evaluation) else None
    lost = outcome if isinstance(outcome, Unscorable) else None
    written = outcome.written
    usage = lost.generator_usage if lost else written.usage if written else Usage()
    return {
        "kind": "group",
        **_response_set(outcome.response_set),
        "scores": scored and scored.scores_K.tolist(),
        "unscorable": lost and {"kind": lost.kind, "reason": lost.reason},
        "items": [_item(item) for item in scored.rubric.items] if scored else [],
        "verdicts": scored.verdicts_MK.astype(int).tolist() if scored else [],
        "probabilities": scored.probabilities_MK.round(6).tolist() if scored else [],
        "dropped": [
            {**_item(item), "probabilities": [None if math.isnan(p) else round(p, 6) for p in probabilities_K]}
            for item, probabilities_K in zip(
                outcome.dropped, outcome.dropped_probabilities or [()] * len(outcome.dropped), strict=True
            )
        ],
        "failures": list(outcome.failures),
        "failed_verdicts": outcome.failed_verdicts,
        "cached_verdicts": outcome.cached_verdicts,
        "rejected": list(lost.rejected if lost else written.rejected if written else ()),
        "rejected_texts": list(lost.rejected_texts if lost else written.rejected_texts if written else ()),
        "rubric_text": written.text if written else None,
        "order": list(written.order) if written else None,
        "cut_responses": written.cut_responses if written else 0,
        "generator_usage": usage_record(usage),
        "verifier_usage": usage_record(outcome.verifier_usage),
    }


def _item(item: RubricItem) -> dict[str, Any]:
    return {"criterion": item.criterion, "weight": item.weight}


def usage_record(usage: Usage) -> dict[str, float]:
    """A cost, as records keep it."""
    return {
        "calls": usage.calls,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "seconds": round(usage.seconds, 4),
    }


def _response_set(response_set: ResponseSet) -> dict[str, Any]:
    return {
        "id": response_set.id,
        "prompt": response_set.prompt if isinstance(response_set.prompt, str) else [dict(turn) for turn in response_set.prompt],
        "responses": list(response_set.responses),
        "anchors": list(response_set.anchors),
    }
