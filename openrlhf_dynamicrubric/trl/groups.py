"""Completions to whole groups over all ranks: gathered, cut by position, shared out; errors reach every rank.

TRL hands a reward function the rows of its own rank only. A group is consecutive in the rows of all ranks laid end to end, in
rank order, and may begin on one rank and end on the next.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from openrlhf_dynamicrubric.errors import DataError, RankError, shown
from openrlhf_dynamicrubric.types import Prompt, ResponseSet

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Row:
    """One completion: its prompt, its text, and the dataset's `id` for the prompt where there is one."""

    prompt: Prompt
    response: str
    id: str = ""


def rank_and_size() -> tuple[int, int]:
    """The number of this process, from 0, and how many there are."""
    import torch.distributed as dist

    # Not accelerate's PartialState: asking it would set up its singleton, which a trainer made later on has to own.
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def on_all_ranks(action: Callable[[], T]) -> list[T]:
    """What the action gives on each rank, in rank order, on every rank. All ranks must call this together.

    Args:
        action: local work without collectives; its result can be pickled.

    Returns:
        One result a rank.

    Raises:
        RankError: the action failed on some rank; raised on all of them, so that none waits for another.
        Exception: with a single process, whatever the action raises.
    """
    _, size = rank_and_size()
    if size == 1:
        return [action()]
    from accelerate.utils import gather_object

    failure: Exception | None = None
    payload, message = b"", ""
    try:
        payload = pickle.dumps(action())
    except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks must hear of it, or they wait in the gather for ever
        failure, message = error, f"{type(error).__name__}: {error}"
    gathered: list[tuple[bytes, str]] = gather_object([(payload, message)])
    failed = [f"on rank {rank} of {size}: {text}" for rank, (_, text) in enumerate(gathered) if text]
    if failed:
        raise RankError("; ".join(failed)) from failure
    return [pickle.loads(payload) for payload, _ in gathered]


def share_of(items: Sequence[T]) -> Sequence[T]:
    """The items that this rank works on: every size-th one, so that neighbours go to different ranks."""
    rank, size = rank_and_size()
    return items[rank::size]


def put_together(shares: Sequence[Sequence[T]]) -> list[T]:
    """The results of each rank's share, in the order of the items that were shared out.

    Example:
        >>> put_together([["a", "c"], ["b"]])
        ['a', 'b', 'c']
    """
    count = sum(len(share) for share in shares)
    return [shares[index % len(shares)][index // len(shares)] for index in range(count)]


def infer_group_size(prompts: Sequence[Prompt]) -> int:
    """The group size that a batch shows: the greatest common divisor of its runs of equal prompts.

    Right where neighbouring groups have different prompts. If two neighbours share theirs the result can only be too large,
    and only if all runs agree; a trainer, or the option `num_generations`, says the size outright.

    Example:
        >>> infer_group_size(["a", "a", "b", "b", "b", "b"])
        2
    """
    return math.gcd(*(len(list(run)) for _, run in groupby(prompts)))


def cut_groups(rows: Sequence[Row], size: int) -> list[ResponseSet]:
    """The rows of all ranks, cut by position into groups.

    Args:
        rows: in rank order.
        size: K, completions a group.

    Returns:
        One response set a group. Two groups with the same prompt stay two groups.

    Raises:
        DataError: the rows do not divide, or a group holds two prompts; the message names positions.
    """
    if size < 1 or len(rows) % size:
        raise DataError(f"{len(rows)} completions over all ranks do not divide into groups of {size}")
    groups = [rows[start : start + size] for start in range(0, len(rows), size)]
    for number, group in enumerate(groups):
        for offset, row in enumerate(group):
            if row.prompt != group[0].prompt:
                first = number * size
                raise DataError(
                    f"completions {first} and {first + offset} (from 0, over all ranks) should belong to one group of {size}, "
                    f"but their prompts differ: {shown(group[0].prompt)} and {shown(row.prompt)}"
                )
    return [ResponseSet(group[0].prompt, tuple(row.response for row in group), id=group[0].id) for group in groups]
