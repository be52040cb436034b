"""Waiting completion calls to answers, in batches."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openrlhf_dynamicrubric.errors import ConfigError, MissingDependencyError, ModelCallError, ModelLoadError
from openrlhf_dynamicrubric.llm.base import Completion
from openrlhf_dynamicrubric.llm.batches import padded, plan, run_in_halves
from openrlhf_dynamicrubric.llm.calls import Call, resolve
from openrlhf_dynamicrubric.llm.transformers_decode import Row, decode
from openrlhf_dynamicrubric.types import Prompt, Usage

if TYPE_CHECKING:
    from openrlhf_dynamicrubric.llm.transformers_local import TransformersModel


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """The arguments of one `complete` call."""

    prompt: Prompt
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    json_schema: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, eq=False)
class _Writing:
    call: Call[CompletionRequest]
    row: Row

    @property
    def tokens(self) -> int:
        return len(self.row.prompt) + self.row.max_tokens


def answer_completions(owner: TransformersModel, calls: Sequence[Call[CompletionRequest]]) -> None:
    """Answers every call: its completion, or the error that is its own.

    Args:
        owner: model, tokenizer and limits.
        calls: what waits.
    """
    writings: list[_Writing] = []
    for call in calls:
        try:
            writings.append(_Writing(call, _row(owner, call)))
        except (ModelCallError, ModelLoadError, ConfigError, MissingDependencyError) as error:
            resolve([(call, error)])
    writings.sort(key=lambda writing: (writing.row.manner, len(writing.row.prompt)))
    for batch in plan(writings, tokens=lambda part: _padded(owner, part), budget=owner.batch_tokens):
        for writing in run_in_halves(lambda part: _write(owner, part), batch):
            message = f"{writing.tokens} tokens of prompt and completion do not fit into the memory of {owner.model.device}"
            resolve([(writing.call, ModelCallError(message))])


def _row(owner: TransformersModel, call: Call[CompletionRequest]) -> Row:
    request = call.request
    prompt = owner.chat.prompt(request.prompt)
    if owner.context_tokens is not None and len(prompt) + request.max_tokens > owner.context_tokens:
        raise ModelCallError(
            f"the prompt has {len(prompt)} tokens; with max_tokens={request.max_tokens} "
            f"the context of {owner.name} takes {owner.context_tokens - request.max_tokens}"
        )
    return Row(
        prompt,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        guide=None if request.json_schema is None else owner.guide(request.json_schema),
        abandoned=lambda: call.abandoned,
    )


def _padded(owner: TransformersModel, batch: Sequence[_Writing]) -> float:
    if len({writing.row.manner for writing in batch}) > 1:
        return math.inf
    longest_completion = max(writing.row.max_tokens for writing in batch)
    return padded([len(writing.row.prompt) for writing in batch], more=longest_completion, pads=owner.pads)


def _write(owner: TransformersModel, batch: list[_Writing]) -> None:
    started = time.perf_counter()
    decode(
        owner.model,
        [writing.row for writing in batch],
        pad_token_id=owner.pad_token_id,
        eos_token_ids=owner.eos_token_ids,
    )
    seconds = time.perf_counter() - started
    total = sum(len(w.row.prompt) + len(w.row.written) for w in batch)
    answers = []
    for writing in batch:
        row = writing.row
        text = owner.tokenizer.decode(row.written, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        usage = Usage(
            calls=1,
            prompt_tokens=len(row.prompt),
            completion_tokens=len(row.written),
            seconds=seconds * (len(row.prompt) + len(row.written)) / total,
        )
        answers.append((writing.call, Completion(str(text), "stop" if row.ended else "length", usage)))
    resolve(answers)
