"""Random weights and verdicts for property tests."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

Arrays = tuple[np.ndarray, np.ndarray]


@st.composite
def rubric_arrays(draw: st.DrawFn, *, min_k: int = 1, max_weight: int = 5) -> Arrays:
    """weights_M and verdicts_MK, M in 1..8, K in min_k..8."""
    items, responses = draw(st.integers(1, 8)), draw(st.integers(min_k, 8))
    weights_M = draw(st.lists(st.integers(1, max_weight), min_size=items, max_size=items))
    verdicts_MK = draw(
        st.lists(st.lists(st.integers(0, 1), min_size=responses, max_size=responses), min_size=items, max_size=items)
    )
    return np.array(weights_M), np.array(verdicts_MK)
