"""Batches of prompts to sampled tokens through transformers' `generate`, each row as if it were alone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from openrlhf_dynamicrubric.llm.transformers_forward import left_padded

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from openrlhf_dynamicrubric.llm.constrained import SchemaGuide


@dataclass(slots=True)
class Row:
    """One completion that is being written.

    Args:
        prompt: token ids, at least one.
        max_tokens: most tokens to write.
        temperature: at least 0; 0 is greedy.
        top_p: nucleus, in (0, 1].
        seed: of the noise.
        guide: what the text has to match, if anything.
        abandoned: True once nobody waits for it any more.
        written: the tokens, without the one that ended the text.
        ended: the model ended the text by itself.
    """

    prompt: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    guide: SchemaGuide | None = None
    abandoned: Callable[[], bool] = lambda: False
    written: list[int] = field(default_factory=list)
    ended: bool = False

    @property
    def manner(self) -> tuple[float, float, int]:
        """Rows of one manner can be decoded in one batch."""
        return self.temperature, self.top_p, id(self.guide)


def decode(model: PreTrainedModel, rows: Sequence[Row], *, pad_token_id: int, eos_token_ids: frozenset[int]) -> None:
    """Writes every row to its end, in one batch.

    Args:
        model: in eval mode, with an empty generation config of its own.
        rows: what to write, all of one manner; `written` and `ended` are filled in.
        pad_token_id: fills prompts up on the left; an architecture that keeps a state for its text wants equal lengths.
        eos_token_ids: tokens that end a row.
    """
    import torch
    from transformers import GenerationConfig

    tokens, mask, _ = left_padded([row.prompt for row in rows], pad_token_id, model.device)
    generated: Any = model.generate(  # type: ignore[operator]
        input_ids=tokens,
        attention_mask=torch.ones_like(tokens) if mask is None else mask,
        generation_config=GenerationConfig(
            max_new_tokens=max(row.max_tokens for row in rows),
            do_sample=False,  # the noise draws, see `SeededNoise`
            eos_token_id=sorted(eos_token_ids) or None,
            pad_token_id=pad_token_id,
        ),
        logits_processor=draw_processors(rows, tokens.shape[1]),
        stopping_criteria=_stopping(rows),
    )
    for row, written in zip(rows, generated[:, tokens.shape[1] :].tolist(), strict=True):
        end = next((index for index, token in enumerate(written) if token in eos_token_ids), len(written))
        row.ended = end < min(len(written), row.max_tokens)
        row.written = written[: min(end, row.max_tokens)]


def draw_processors(rows: Sequence[Row], prompt_columns: int) -> Any:
    """What turns the greedy choice of `generate` into each row's own draw.

    Args:
        rows: all of one manner.
        prompt_columns: columns before the first token that is written.

    Returns:
        transformers' list of logits processors.
    """
    from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopPLogitsWarper

    from openrlhf_dynamicrubric.llm.constrained import JsonSchemaProcessor

    row = rows[0]
    processors = LogitsProcessorList()
    if row.guide is not None:
        processors.append(JsonSchemaProcessor(row.guide))
    if row.temperature > 0:
        if row.temperature != 1:
            processors.append(TemperatureLogitsWarper(float(row.temperature)))
        if row.top_p < 1:
            processors.append(TopPLogitsWarper(row.top_p))
        processors.append(SeededNoise([row.seed for row in rows], prompt_columns))
    return processors


def _stopping(rows: Sequence[Row]) -> Any:
    import torch
    from transformers import StoppingCriteria, StoppingCriteriaList

    class Abandoned(StoppingCriteria):
        """Rows that nobody waits for any more."""

        def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:  # type: ignore[override]
            return torch.tensor([row.abandoned() for row in rows], device=input_ids.device)

    return StoppingCriteriaList([Abandoned()])


class SeededNoise:
    """A logits processor that turns the greedy choice into a draw, with noise that is each row's own.

    argmax_v (s_v + g_v) with Gumbel noise g is a draw from softmax(s); g is a function of seed, step and token alone, so
    that the draw depends neither on the other rows nor on the device.

    Args:
        seeds: one a row.
        prompt_columns: columns before the first token that is written.
    """

    def __init__(self, seeds: Sequence[int], prompt_columns: int) -> None:
        self._seeds = seeds
        self._prompt_columns = prompt_columns

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The scores with noise, same shape."""
        step = input_ids.shape[1] - self._prompt_columns
        return scores + gumbel([(seed, step) for seed in self._seeds], scores.shape[1], scores.device)


def gumbel(counters: Sequence[tuple[int, int]], size: int, device: torch.device) -> torch.Tensor:
    """Gumbel noise that is a function of its counters: an integer hash of (seed, step, token), the same on every device.

    Args:
        counters: seed and step of each row.
        size: of the vocabulary.
        device: where the noise is made.

    Returns:
        Shape (rows, size), float32.
    """
    import torch

    digests = [hashlib.blake2b(repr(counter).encode(), digest_size=8).digest() for counter in counters]
    keys = torch.tensor([[int.from_bytes(d[i : i + 4], "big", signed=True) for i in (0, 4)] for d in digests], device=device)
    keys = keys.to(torch.int32)
    bits = torch.arange(size, dtype=torch.int32, device=device)[None, :] ^ keys[:, :1]
    bits = _mixed(_mixed(bits) + keys[:, 1:])
    return uniform(bits).log_().neg_().log_().neg_()


def uniform(bits: torch.Tensor) -> torch.Tensor:
    """Numbers strictly between 0 and 1: 23 of 32 bits and a half more; with one bit more float32 would round up to 1."""
    import torch

    return ((bits >> 9) & 0x7FFFFF).to(torch.float32).add_(0.5).mul_(2.0**-23)


def _mixed(bits: torch.Tensor) -> torch.Tensor:
    """A bijection of 32-bit numbers whose every output bit depends on every input bit."""
    bits = bits ^ ((bits >> 16) & 0xFFFF)
    bits *= 0x7FEB352D
    bits ^= (bits >> 15) & 0x1FFFF
    bits *= 0x846CA68B - 2**32
    bits ^= (bits >> 16) & 0xFFFF
    return bits
