"""One forward pass, as the architectures of transformers want it, and what they keep between passes."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel


def forward(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    *,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    cache: Any = None,
    keep: int | torch.Tensor = 1,
) -> torch.Tensor:
    """Logits of the positions asked for, and of no others.

    Args:
        model: in eval mode.
        input_ids: shape (rows, length).
        attention_mask: shape (rows, cached + length), or (rows, 1, length, cached + length) and added to the attention.
        position_ids: shape (rows, length); left out for architectures that have none.
        cache: keys and values of what went before; grows by `length`.
        keep: how many positions from the end, or which columns.

    Returns:
        Shape (rows, positions, vocabulary).
    """
    import torch

    known = parameters(type(model))
    options: dict[str, Any] = {"use_cache": cache is not None}
    if attention_mask is not None:
        options["attention_mask"] = attention_mask
    if position_ids is not None and "position_ids" in known:
        options["position_ids"] = position_ids
    if cache is not None:
        options["cache" if "cache" in known else "past_key_values"] = cache
    if "logits_to_keep" in known:
        return model(input_ids=input_ids, logits_to_keep=keep, **options).logits
    logits = model(input_ids=input_ids, **options).logits
    return logits[:, keep] if isinstance(keep, torch.Tensor) else logits[:, -keep:]


@lru_cache(maxsize=64)
def parameters(model_class: type[PreTrainedModel]) -> frozenset[str]:
    """The names that an architecture's forward pass takes."""
    return frozenset(inspect.signature(model_class.forward).parameters)


def left_padded(
    sequences: Sequence[Sequence[int]], pad_token_id: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Sequences as the rows of one tensor, padding first.

    Returns:
        Token ids, shape (rows, longest); the mask of the same shape, None where there is no padding; each row's positions.
    """
    import torch

    longest = max(map(len, sequences))
    gaps = [longest - len(sequence) for sequence in sequences]
    rows = [[pad_token_id] * gap + list(sequence) for gap, sequence in zip(gaps, sequences, strict=True)]
    gap_R = torch.tensor(gaps, device=device)
    column_L = torch.arange(longest, device=device)
    mask_RL = (column_L >= gap_R[:, None]).long() if any(gaps) else None
    return torch.tensor(rows, device=device), mask_RL, (column_L - gap_R[:, None]).clamp(min=0)


def keeps_keys_only(config: PreTrainedConfig) -> bool:
    """Whether every layer of this architecture keeps keys and values row by row, and no other state."""
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in DynamicCache(config=config).layers)


def window(config: PreTrainedConfig) -> int | None:
    """The shortest window of a sliding layer; None where every layer sees everything."""
    from transformers.cache_utils import DynamicCache, DynamicSlidingWindowLayer

    layers = DynamicCache(config=config).layers
    return min((layer.sliding_window for layer in layers if isinstance(layer, DynamicSlidingWindowLayer)), default=None)
