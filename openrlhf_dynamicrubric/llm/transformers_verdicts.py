"""The probability of yes at the first answer token: question by question, or all questions behind one shared prefix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from openrlhf_dynamicrubric.llm.transformers_chat import AnswerTokens
from openrlhf_dynamicrubric.llm.transformers_forward import forward, keeps_keys_only, left_padded, parameters

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


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

    The prefixes go first, padded on the right, under the model's own causal attention. Then all suffixes of a row go side
    by side behind its prefix: a suffix sees the prefix and itself, and counts its positions from the end of the prefix.
    Suffix j of every row ends in the same column, so that logits are computed for those columns only.

    Args:
        model: in eval mode; an architecture whose attention takes a mask of four dimensions.
        rows: prefixes and suffixes.
        answers: what spells yes and no.
        pad_token_id: fills rows up.

    Returns:
        For each row one value a suffix, as `plain_log_odds`.
    """
    import torch
    from transformers import DynamicCache

    device = model.device
    orders = [sorted(range(len(row.suffixes)), key=lambda j, row=row: -len(row.suffixes[j])) for row in rows]
    ordered = [[row.suffixes[j] for j in order] for row, order in zip(rows, orders, strict=True)]
    longest = max(len(row.prefix) for row in rows)
    # Fills up with a token of the row, which is masked like any other: some architectures suspect a pad token here.
    prefixes = torch.tensor([row.prefix + row.prefix[-1:] * (longest - len(row.prefix)) for row in rows], device=device)
    cache = DynamicCache(config=model.config)
    forward(model, prefixes, attention_mask=None, position_ids=None, cache=cache)
    tokens, offsets, real, slots, ends = _slots(ordered, pad_token_id, device)
    lengths = torch.tensor([len(row.prefix) for row in rows], device=device)
    mask = _mask(lengths, longest, real, slots, model.dtype)
    logits = forward(model, tokens, attention_mask=mask, position_ids=lengths[:, None] + offsets, cache=cache, keep=ends)
    values = _log_odds(logits, answers).tolist()
    result = [[0.0] * len(row.suffixes) for row in rows]
    for row, order in enumerate(orders):
        for slot, suffix in enumerate(order):
            result[row][suffix] = values[row][slot]
    return result


def shared_row_limit(model: PreTrainedModel) -> float:
    """Most tokens of a prefix and one suffix that `shared_log_odds` computes as the model would: its sliding window.

    Returns:
        Infinite where every layer sees everything; 0 where a layer keeps something else than keys and values.
    """
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    if not keeps_keys_only(cache):
        return 0
    return min((getattr(layer, "sliding_window", math.inf) for layer in cache.layers), default=math.inf)


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


def slot_tokens(lengths: Sequence[Sequence[int]]) -> int:
    """Columns that suffixes of these lengths take, a list of lengths for each row."""
    ordered = [sorted(row, reverse=True) for row in lengths]
    return sum(max(row[j] for row in ordered if j < len(row)) for j in range(max(map(len, ordered))))


def _slots(
    suffixes: Sequence[Sequence[Sequence[int]]], pad_token_id: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Suffix j of every row into the same columns, right-aligned.

    Returns:
        Token ids, offset inside the suffix and whether it is a token, each of shape (rows, columns); the slot of each
        column, shape (columns,); the last column of each slot, shape (slots,).
    """
    import torch

    count = max(map(len, suffixes))
    widths = [max(len(row[j]) if j < len(row) else 0 for row in suffixes) for j in range(count)]
    tokens, offsets = [], []
    for row in suffixes:
        parts = [list(row[j]) if j < len(row) else [] for j in range(count)]
        tokens.append([t for part, w in zip(parts, widths, strict=True) for t in [pad_token_id] * (w - len(part)) + part])
        offsets.append([o for part, w in zip(parts, widths, strict=True) for o in range(len(part) - w, len(part))])
    offset = torch.tensor(offsets, device=device)
    slots = torch.repeat_interleave(torch.arange(count), torch.tensor(widths)).to(device)
    ends = torch.tensor(widths).cumsum(0).sub(1).to(device)
    return torch.tensor(tokens, device=device), offset.clamp(min=0), offset >= 0, slots, ends


def _mask(
    lengths_R: torch.Tensor, longest: int, real_RQ: torch.Tensor, slots_Q: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """What is added to the attention: 0 where a column may look, the lowest number elsewhere; (rows, 1, Q, longest + Q)."""
    import torch

    device, columns = real_RQ.device, real_RQ.shape[1]
    prefix = (torch.arange(longest, device=device)[None] < lengths_R[:, None])[:, None].expand(-1, columns, -1)
    column = torch.arange(columns, device=device)
    same = (slots_Q[:, None] == slots_Q[None]) & (column[:, None] >= column[None])
    seen = torch.cat([prefix, same[None] & real_RQ[:, None]], dim=-1)
    return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, torch.finfo(dtype).min)[:, None]


def _log_odds(logits: torch.Tensor, answers: AnswerTokens) -> torch.Tensor:
    logits = logits.float()
    return logits[..., list(answers.yes)].logsumexp(-1) - logits[..., list(answers.no)].logsumexp(-1)
