"""Keys and values that grow in place, go back, and follow rows that leave the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_ROOM = 128


class GrowingLayer(DynamicLayer):
    """A full-attention layer's keys and values with room for more, where the stock layer copies all of them at every token.

    Replaces `update` and `batch_select_indices`, and adds `rewind`.
    """

    _room: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds columns; gives all keys and values so far."""
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if self._room is None or self._room[0].shape[-2] < end:
            self._room = (_grown(self.keys, start, key_states, end), _grown(self.values, start, value_states, end))
            self.is_initialized = True
        keys, values = self._room
        keys[:, :, start:end] = key_states
        values[:, :, start:end] = value_states
        self.keys, self.values = keys[:, :, :end], values[:, :, :end]
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps these rows, in this order."""
        super().batch_select_indices(indices)
        self._room = None

    def rewind(self, length: int) -> None:
        """Forgets everything behind the first `length` columns."""
        if self._room is not None:
            self.keys, self.values = (room[:, :, :length] for room in self._room)


def growing_cache(config: PreTrainedConfig, *, all_layers: bool = False) -> DynamicCache:
    """An empty cache whose full-attention layers grow in place.

    Args:
        config: of the model.
        all_layers: sliding layers keep everything too; right while nothing is longer than their window.

    Returns:
        The cache; layers that keep something else than keys and values are the stock ones.
    """
    cache = DynamicCache(config=config)
    grown = (DynamicLayer, DynamicSlidingWindowLayer) if all_layers else (DynamicLayer,)
    cache.layers = [GrowingLayer() if type(layer) in grown else layer for layer in cache.layers]
    return cache


def keeps_keys_only(config: PreTrainedConfig) -> bool:
    """Whether every layer of this architecture keeps keys and values row by row, and no other state."""
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in DynamicCache(config=config).layers)


def window(config: PreTrainedConfig) -> int | None:
    """The shortest window of a sliding layer; None where every layer sees everything."""
    layers = DynamicCache(config=config).layers
    return min((layer.sliding_window for layer in layers if isinstance(layer, DynamicSlidingWindowLayer)), default=None)


def _grown(old: torch.Tensor | None, start: int, new: torch.Tensor, end: int) -> torch.Tensor:
    rows, heads, _, size = new.shape
    room = new.new_empty(rows, heads, end + max(_ROOM, end // 8), size)
    if old is not None and start:
        room[:, :, :start] = old[:, :, :start]
    return room
