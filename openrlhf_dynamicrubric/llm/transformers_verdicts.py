"""The probability of yes at the first answer token: question by question, or all questions behind one shared prefix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from openrlhf_dynamicrubric.llm.transformers_chat import AnswerTokens
from openrlhf_dynamicrubric.llm.transformers_forward import forward, keeps_keys_only, left_padded, parameters, window

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

COLUMNS = 512
"""Most columns of suffixes in one forward pass: their attention to each other, all of it masked, grows with the square."""


@dataclass(frozen=True, slots=True)
class SharedRow:
    """Questions behind one prefix.

    Args:
        prefix: token ids, at least one.
        suffixes: token ids of each question behind it, at least one each.
    """

    prefix: list[int]
    suffixes: list[list[int]]


def plain_log_odds(
    model: PreTrainedModel, sequences: Sequence[Sequence[int]], answers: AnswerTokens, *, pad_token_id: int
) -> list[float]:
    """Log-odds of yes after each sequence, one row a sequence.

    Args:
        model: in eval mode.
        sequences: token ids.
        answers: what spells yes and no.
        pad_token_id: fills rows up on the left.

    Returns:
        log P(yes) / P(no) of the next token; NaN or infinite where the model's logits are.
    """
    tokens, mask, position = left_padded(sequences, pad_token_id, model.device)
    logits = forward(model, tokens, attention_mask=mask, position_ids=position)
    return _log_odds(logits[:, -1], answers).tolist()


def shared_log_odds(
    model: PreTrainedModel, rows: Sequence[SharedRow], answers: AnswerTokens, *, pad_token_id: int
) -> list[list[float]]:
    """Log-odds of yes after each suffix of each row, every prefix computed once.

    The prefixes go first, padded on the right, under the model's own causal attention. Then the suffixes of a row go side
    by side behind its prefix: a suffix sees the prefix and itself, and counts its positions from the end of the prefix.
    Suffix j of every row ends in the same column, so that logits are computed for those columns only. Suffixes see
    nothing of each other, so that they go in groups of at most `COLUMNS` columns where there are many.

    Args:
        model: in eval mode; an architecture whose attention takes a mask of four dimensions.
        rows: prefixes and suffixes, none longer together than `shared_row_limit`.
        answers: what spells yes and no.
        pad_token_id: fills rows up.

    Returns:
        For each row one value a suffix, as `plain_log_odds`.
    """
    import torch
    from transformers import DynamicCache

    longest = max(len(row.prefix) for row in rows)
    lengths = torch.tensor([len(row.prefix) for row in rows], device=model.device)
    # Filled up with a token of the row, which is masked like any other: some architectures suspect a pad token here.
    prefixes = torch.tensor([row.prefix + row.prefix[-1:] * (longest - len(row.prefix)) for row in rows])
    cache = DynamicCache()  # without a config, so that sliding layers keep everything too: no row is longer than their window
    forward(model, prefixes.to(model.device), attention_mask=None, position_ids=None, cache=cache)
    orders = [_longest_first(row.suffixes) for row in rows]
    ordered = [[row.suffixes[j] for j in order] for row, order in zip(rows, orders, strict=True)]
    values: list[list[float]] = [[] for _ in rows]
    for first, last in _groups(_widths([[len(suffix) for suffix in row] for row in ordered])):
        slots = _Slots.of([row[first:last] for row in ordered], pad_token_id, model.device)
        mask = slots.mask(lengths, longest, model.dtype)
        position = lengths[:, None] + slots.offset_RQ
        logits = forward(model, slots.token_RQ, attention_mask=mask, position_ids=position, cache=cache, keep=slots.end_S)
        for row, row_values in enumerate(_log_odds(logits, answers).tolist()):
            values[row].extend(row_values)
        cache.crop(-slots.token_RQ.shape[1])
    return [_in_order(row_values, order) for row_values, order in zip(values, orders, strict=True)]


def shared_columns(lengths: Sequence[Sequence[int]]) -> int:
    """Columns behind the prefixes in the largest forward pass over suffixes of these lengths, a list of lengths a row."""
    widths = _widths([sorted(row, reverse=True) for row in lengths])
    return max(sum(widths[first:last]) for first, last in _groups(widths))


def _longest_first(suffixes: Sequence[Sequence[int]]) -> list[int]:
    return sorted(range(len(suffixes)), key=lambda j: -len(suffixes[j]))


def _in_order(values: Sequence[float], order: Sequence[int]) -> list[float]:
    return [value for _, value in sorted(zip(order, values, strict=False))]


def _widths(lengths: Sequence[Sequence[int]]) -> list[int]:
    """Columns of each slot: slot j takes the j-th suffix of every row that has one."""
    return [max(row[j] for row in lengths if j < len(row)) for j in range(max(map(len, lengths)))]


def _groups(widths: Sequence[int]) -> list[tuple[int, int]]:
    """Slots that go through the model together, from one up to another, as many as `COLUMNS` takes but at least one."""
    groups: list[tuple[int, int]] = []
    for slot in range(len(widths)):
        if groups and sum(widths[groups[-1][0] : slot + 1]) <= COLUMNS:
            groups[-1] = (groups[-1][0], slot + 1)
        else:
            groups.append((slot, slot + 1))
    return groups


@dataclass(frozen=True, slots=True)
class _Slots:
    """Suffixes side by side; suffix j of every row in the same columns, right-aligned.

    Args:
        token_RQ: token ids, shape (rows, columns).
        offset_RQ: a token's place in its suffix; 0 for padding.
        real_RQ: whether a column holds a token of the row.
        slot_Q: the slot of each column.
        end_S: the last column of each slot.
    """

    token_RQ: torch.Tensor
    offset_RQ: torch.Tensor
    real_RQ: torch.Tensor
    slot_Q: torch.Tensor
    end_S: torch.Tensor

    @classmethod
    def of(cls, suffixes: Sequence[Sequence[Sequence[int]]], pad_token_id: int, device: torch.device) -> _Slots:
        import torch

        widths = _widths([[len(suffix) for suffix in row] for row in suffixes])
        tokens, offsets = [], []
        for row in suffixes:
            parts = [list(row[j]) if j < len(row) else [] for j in range(len(widths))]
            tokens.append([t for part, w in zip(parts, widths, strict=True) for t in [pad_token_id] * (w - len(part)) + part])
            offsets.append([o for part, w in zip(parts, widths, strict=True) for o in range(len(part) - w, len(part))])
        offset, width = torch.tensor(offsets), torch.tensor(widths)
        slot = torch.repeat_interleave(torch.arange(len(widths)), width)
        columns = (torch.tensor(tokens), offset.clamp(min=0), offset >= 0, slot, width.cumsum(0) - 1)
        return cls(*(column.to(device) for column in columns))

    def mask(self, length_R: torch.Tensor, longest: int, dtype: torch.dtype) -> torch.Tensor:
        """What is added to the attention: 0 where a column may look, the lowest number elsewhere.

        Args:
            length_R: tokens of each row's prefix.
            longest: columns of the prefixes.
            dtype: of the model.

        Returns:
            Shape (rows, 1, columns, longest + columns).
        """
        import torch

        device, columns = self.slot_Q.device, len(self.slot_Q)
        prefix = (torch.arange(longest, device=device) < length_R[:, None])[:, None].expand(-1, columns, -1)
        column = torch.arange(columns, device=device)
        same = (self.slot_Q[:, None] == self.slot_Q) & (column[:, None] >= column)
        seen = torch.cat([prefix, same & self.real_RQ[:, None]], dim=-1)
        return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, torch.finfo(dtype).min)[:, None]


def shared_row_limit(model: PreTrainedModel) -> float:
    """Most tokens of a prefix and one suffix that `shared_log_odds` computes as the model would: its sliding window.

    Returns:
        Infinite where every layer sees everything; 0 where a layer keeps something else than keys and values.
    """
    if not keeps_keys_only(model.config):
        return 0
    return window(model.config) or math.inf


def sharing_error(model: PreTrainedModel, answers: AnswerTokens, *, pad_token_id: int) -> float:
    """How far `shared_log_odds` is from `plain_log_odds` on a small example.

    Args:
        model: in eval mode.
        answers: what spells yes and no.
        pad_token_id: fills rows up.

    Returns:
        The largest difference of log-odds; infinite for an architecture that cannot be asked in that way.
    """
    needed = {"position_ids", "attention_mask", "use_cache"}
    if model.config._attn_implementation not in ("eager", "sdpa") or not needed <= parameters(type(model)):
        return math.inf
    shapes = ((7, (3, 5)), (4, (2, 1, 4)))
    if shared_row_limit(model) < max(prefix + max(suffixes) for prefix, suffixes in shapes):
        return math.inf
    size = int(model.config.get_text_config().vocab_size)
    random = Random(0)
    rows = [
        SharedRow(
            [random.randrange(size) for _ in range(prefix)], [[random.randrange(size) for _ in range(n)] for n in suffixes]
        )
        for prefix, suffixes in shapes
    ]
    together = shared_log_odds(model, rows, answers, pad_token_id=pad_token_id)
    alone = plain_log_odds(
        model, [row.prefix + suffix for row in rows for suffix in row.suffixes], answers, pad_token_id=pad_token_id
    )
    differences = [abs(a - b) for a, b in zip([value for row in together for value in row], alone, strict=True)]
    return max(difference if difference == difference else math.inf for difference in differences)


def _log_odds(logits: torch.Tensor, answers: AnswerTokens) -> torch.Tensor:
    logits = logits.float()
    return logits[..., list(answers.yes)].logsumexp(-1) - logits[..., list(answers.no)].logsumexp(-1)
