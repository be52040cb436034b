"""Batches under a token budget, and smaller ones where the memory ends. Pure but for the model that is run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def plan(items: Sequence[Item], *, tokens: Callable[[Sequence[Item]], float], budget: int) -> list[list[Item]]:
    """Items in batches of at most `budget` tokens; an item that is larger by itself is a batch by itself.

    Args:
        items: in an order that puts equal lengths side by side.
        tokens: tokens of a batch, padding included.
        budget: most tokens of a batch.

    Returns:
        The batches; together they hold every item once, in the given order.

    Example:
        >>> plan([3, 3, 5], tokens=lambda batch: len(batch) * max(batch), budget=6)
        [[3, 3], [5]]
    """
    batches: list[list[Item]] = []
    for item in items:
        if batches and tokens([*batches[-1], item]) <= budget:
            batches[-1].append(item)
        else:
            batches.append([item])
    return batches


def padded(lengths: Sequence[int], *, more: int = 0, pads: bool = True) -> float:
    """Tokens of a batch of sequences, each filled up to the longest.

    Args:
        lengths: of the sequences.
        more: tokens that will be added to each.
        pads: False where padding would change the result: unequal lengths then make a batch that never fits.

    Returns:
        Rows times length; infinite for a batch that may not be.
    """
    if not pads and min(lengths) < max(lengths):
        return math.inf
    return len(lengths) * (max(lengths) + more)


def run_in_halves(run: Callable[[list[Item]], None], items: list[Item]) -> list[Item]:
    """Runs a batch; where the device's memory does not hold it, its halves, and theirs.

    Args:
        run: works on some of the items, from the beginning; may raise torch.OutOfMemoryError.
        items: the batch.

    Returns:
        The items that do not fit even alone.
    """
    import torch

    try:
        run(items)
    except torch.OutOfMemoryError:
        pass  # out of this block first: the exception holds the tensors that filled the memory
    else:
        return []
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if len(items) == 1:
        return items
    half = len(items) // 2
    return run_in_halves(run, items[:half]) + run_in_halves(run, items[half:])
