"""Batches of prompts to sampled tokens, each row as if it were alone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from openrlhf_dynamicrubric.llm.transformers_cache import growing_cache, keeps_keys_only
from openrlhf_dynamicrubric.llm.transformers_forward import forward, left_padded

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
        written: the tokens so far, without the one that ended the text.
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
    matcher: Any = None

    def start(self) -> None:
        """Nothing is written yet."""
        self.written, self.ended = [], False
        self.matcher = self.guide.matcher() if self.guide else None

    @property
    def done(self) -> bool:
        """There is nothing more to write."""
        return self.ended or len(self.written) >= self.max_tokens or self.abandoned()

    def take(self, token: int, eos_token_ids: frozenset[int]) -> None:
        """Adds a token, or ends the text with it."""
        if token in eos_token_ids:
            self.ended = True
            return
        self.written.append(token)
        if self.matcher is not None:
            self.matcher.consume_token(token)


def decode(model: PreTrainedModel, rows: Sequence[Row], *, pad_token_id: int, eos_token_ids: frozenset[int]) -> None:
    """Writes every row to its end, in one batch that gets smaller as rows end. Equal prompts are read once.

    Args:
        model: in eval mode.
        rows: what to write; `written` and `ended` are filled in.
        pad_token_id: fills prompts up on the left; an architecture that keeps a state for its text wants equal lengths.
        eos_token_ids: tokens that end a row.
    """
    for row in rows:
        row.start()
    batch = _Batch(model, list(rows), pad_token_id)
    while batch.rows:
        scores = _constrain(batch.scores, batch.rows)
        for row, token in zip(batch.rows, choose(scores, batch.rows).tolist(), strict=True):
            if not row.done:
                row.take(token, eos_token_ids)
        batch.step()


class _Batch:
    """Rows that are being written, with the scores of their next tokens.

    Args:
        model: in eval mode.
        rows: of which nothing is written.
        pad_token_id: fills prompts up on the left.
    """

    def __init__(self, model: PreTrainedModel, rows: list[Row], pad_token_id: int) -> None:
        self.model = model
        self.rows = rows
        self.pad_token_id = pad_token_id
        self.cache = growing_cache(model.config)
        self.shrinks = keeps_keys_only(model.config)
        prompts = list(dict.fromkeys(tuple(row.prompt) for row in rows)) if self.shrinks else [row.prompt for row in rows]
        tokens, self.mask, self.position = left_padded(prompts, pad_token_id, model.device)
        self._forward(tokens)
        if len(prompts) < len(rows):
            place = {prompt: index for index, prompt in enumerate(prompts)}
            self._select([place[tuple(row.prompt)] for row in rows])

    def step(self) -> None:
        """Reads what the rows took; those that are done leave."""
        import torch

        going = [index for index, row in enumerate(self.rows) if not row.done]
        if not going or (self.shrinks and len(going) < len(self.rows)):
            self.rows = [self.rows[index] for index in going]
            if not going:
                return
            self._select(going)
        tokens = [self.pad_token_id if row.done else row.written[-1] for row in self.rows]
        self.position = self.position[:, -1:] + 1
        if self.mask is not None:
            self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.rows), 1)], dim=1)
        self._forward(torch.tensor(tokens, device=self.model.device)[:, None])

    def _forward(self, tokens: torch.Tensor) -> None:
        options = {"attention_mask": self.mask, "position_ids": self.position, "cache": self.cache}
        self.scores = forward(self.model, tokens, **options)[:, -1].float()

    def _select(self, rows: list[int]) -> None:
        import torch

        index = torch.tensor(rows, device=self.model.device)
        self.cache.batch_select_indices(index)
        self.scores, self.position = self.scores[index], self.position[index]
        self.mask = None if self.mask is None else self.mask[index]


def _constrain(scores_RV: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """The scores with -inf where a row's guide allows no token."""
    import torch

    for guide in {id(row.guide): row.guide for row in rows if row.guide}.values():
        index = [number for number, row in enumerate(rows) if row.guide is guide]
        allowed = torch.from_numpy(guide.allowed([rows[number].matcher for number in index], scores_RV.shape[1]))
        scores_RV[index] = scores_RV[index].masked_fill(~allowed.to(scores_RV.device), float("-inf"))
    return scores_RV


def choose(scores_RV: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """The next token of each row, drawn with noise that is the row's own.

    argmax_v (s_v / T + g_v) with Gumbel noise g is a draw from softmax(s / T); g is a function of seed, step and token
    alone, so that the draw depends neither on the other rows nor on the device.

    Args:
        scores_RV: logits, shape (rows, vocabulary), float32.
        rows: how to draw.

    Returns:
        Token ids, shape (rows,).
    """
    import torch

    if all(row.temperature == 0 for row in rows):
        return scores_RV.argmax(-1)
    device = scores_RV.device
    temperature_R = torch.tensor([row.temperature or 1.0 for row in rows], device=device)
    warm_R = torch.tensor([row.temperature > 0 for row in rows], device=device)
    scores_RV = scores_RV / temperature_R[:, None]
    if any(row.top_p < 1 for row in rows):
        scores_RV = _nucleus(scores_RV, torch.tensor([row.top_p for row in rows], device=device))
    noise_RV = gumbel([(row.seed, len(row.written)) for row in rows], scores_RV.shape[1], device)
    return (scores_RV + noise_RV * warm_R[:, None]).argmax(-1)


def _nucleus(scores_RV: torch.Tensor, top_p_R: torch.Tensor) -> torch.Tensor:
    ordered, order = scores_RV.sort(dim=-1, descending=True)
    before = ordered.softmax(-1).cumsum(-1).roll(1, dims=-1)
    before[:, 0] = 0
    outside = before >= top_p_R[:, None]
    return scores_RV.masked_fill(outside.scatter(-1, order, outside), float("-inf"))


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
    uniform = ((bits >> 8) & 0xFFFFFF).to(torch.float32).add_(0.5).mul_(2.0**-24)
    return uniform.log_().neg_().log_().neg_()


def _mixed(bits: torch.Tensor) -> torch.Tensor:
    """A bijection of 32-bit numbers whose every output bit depends on every input bit."""
    bits = bits ^ ((bits >> 16) & 0xFFFF)
    bits *= 0x7FEB352D
    bits ^= (bits >> 15) & 0x1FFFF
    bits *= 0x846CA68B - 2**32
    bits ^= (bits >> 16) & 0xFFFF
    return bits
