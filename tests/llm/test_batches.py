"""Batches hold everything once, in order, under the budget."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_dynamicrubric.llm.batches import padded, plan, run_in_halves

LENGTHS = st.lists(st.integers(1, 50), max_size=40)


@given(LENGTHS, st.integers(1, 120))
def test_plan_keeps_order_and_budget(lengths: list[int], budget: int) -> None:
    batches = plan(lengths, tokens=padded, budget=budget)
    assert [length for batch in batches for length in batch] == lengths
    assert all(padded(batch) <= budget or len(batch) == 1 for batch in batches)


@given(LENGTHS)
def test_plan_without_padding_keeps_lengths_apart(lengths: list[int]) -> None:
    batches = plan(sorted(lengths), tokens=lambda batch: padded(batch, pads=False), budget=10**9)
    assert len(batches) == len(set(lengths))


def test_padded_counts_what_a_batch_holds() -> None:
    assert padded([3, 5], more=10) == 30
    assert padded([3, 5], pads=False) == math.inf
    assert padded([5, 5], pads=False) == 10


@pytest.mark.parametrize("fits", [1, 2, 3, 7])
def test_halves_until_it_fits(fits: int) -> None:
    done: list[int] = []

    def run(items: list[int]) -> None:
        if len(items) > fits:
            raise torch.OutOfMemoryError("too many rows")
        done.extend(items)

    assert run_in_halves(run, list(range(7))) == []
    assert done == list(range(7))


def test_what_does_not_fit_alone_is_given_back() -> None:
    done: list[int] = []

    def run(items: list[int]) -> None:
        if 3 in items:
            raise torch.OutOfMemoryError("a large one")
        done.extend(items)

    assert run_in_halves(run, list(range(6))) == [3]
    assert done == [0, 1, 2, 4, 5]


def test_any_other_error_comes_out() -> None:
    def run(items: list[int]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_in_halves(run, [1, 2])
