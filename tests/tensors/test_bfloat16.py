"""bfloat16 is counted by its bits: the same figures as of the same values in float32."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layerstep.tensors.bfloat16 import extremes_of, words_of
from layerstep.tensors.summary import summarize

EXACT = ("count", "nan", "posinf", "neginf", "zero", "min", "max", "max_norm")
PATTERNS = st.integers(0, 0xFFFF) | st.sampled_from([0, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 1, 0x8001, 0x3F80])


def from_bits(patterns: list[int]) -> torch.Tensor:
    return torch.tensor(np.array(patterns, np.uint16).view(np.int16)).view(torch.bfloat16)


@given(patterns=st.lists(PATTERNS, min_size=1, max_size=40), start=st.integers(0, 3))
def test_any_bits_have_the_figures_of_their_values(patterns: list[int], start: int) -> None:
    tensor = from_bits([0] * start + patterns)[start:]  # every other one does not begin at a word
    for brief in (True, False):
        found = summarize(tensor, brief=brief).stats
        right = summarize(tensor.float().clone(), brief=brief).stats
        assert found is not None and right is not None
        assert [getattr(found, name) for name in EXACT] == [getattr(right, name) for name in EXACT]
        for name in ("mean", "std", "l2"):
            one, other = getattr(found, name), getattr(right, name)
            assert (one is None) == (other is None)
            assert one is None or math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-6 * (right.max_norm or 0))


@pytest.mark.parametrize(
    ("values", "lo", "hi", "has_zero"),
    [
        ([1.0, -2.0, 3.0, -0.5], -2.0, 3.0, False),
        ([-1.0, -3.0], -3.0, -1.0, False),
        ([1.0, 3.0], 1.0, 3.0, False),
        ([-0.0, 5.0], 0.0, 5.0, True),
        ([-0.0, -5.0], -5.0, 0.0, True),
        ([0.0, -5.0], -5.0, 0.0, True),
    ],
)
def test_extremes_and_zeros_are_told_from_the_bits(
    values: list[float], lo: float, hi: float, has_zero: bool
) -> None:
    words = words_of(torch.tensor(values, dtype=torch.bfloat16))
    assert words is not None
    assert extremes_of(words) == (lo, hi, has_zero)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_has_no_extremes(value: float) -> None:
    words = words_of(torch.tensor([1.0, value], dtype=torch.bfloat16))
    assert words is not None and extremes_of(words) is None


def test_many_blocks_and_an_odd_value_at_the_end() -> None:
    tensor = torch.randn(700_001, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    tensor[::1000] = 0.0
    tensor[-1] = 1000.0
    found, values = summarize(tensor, brief=True).stats, tensor.double()
    assert found is not None and found.zero == int((tensor == 0).sum()) and found.max == 1000.0
    assert found.mean == pytest.approx(values.mean().item(), rel=1e-5)
    assert found.std == pytest.approx(values.std(correction=0).item(), rel=1e-6)
