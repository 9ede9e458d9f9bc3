"""Percentiles, histograms and outliers against float64 numpy, held, counted and streamed."""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layerstep.tensors import blocks
from layerstep.tensors import spread as module
from layerstep.tensors.spread import PERCENTS, Spread, spread
from tensor_cases import FLOATS, INF, NAN, as_float64, generator, kinds, odd_tensors, quick, views


def look(tensor: torch.Tensor, **options: Any) -> Spread:
    found = spread(tensor, **options)
    assert found is not None
    return found


def assert_right(found: Spread, values: Any) -> None:
    """Everything that numpy can say about the finite values."""
    array = np.asarray(values, dtype=np.float64).reshape(-1)
    good = array[np.isfinite(array)]
    size = np.abs(good).max()
    near = {"rel": 1e-12, "abs": 1e-12 * size}
    assert [percent for percent, _ in found.percentiles] == list(PERCENTS)
    assert [value for _, value in found.percentiles] == pytest.approx(np.percentile(good, PERCENTS), **near)
    assert found.median == pytest.approx(np.median(good), **near)
    assert found.mad == pytest.approx(np.median(np.abs(good - found.median)), **near)
    assert found.nonfinite == array.size - good.size
    if found.mad:
        reach = 6 * 1.4826 * found.mad
        assert (found.outlier_low, found.outlier_high) == (found.median - reach, found.median + reach)
    assert found.outliers == np.count_nonzero((good < found.outlier_low) | (good > found.outlier_high))
    assert_histogram(found, good)


def assert_histogram(found: Spread, good: Any) -> None:
    edges = np.array(found.edges)
    assert np.all(np.diff(edges) > 0) and len(found.counts) == edges.size - 1
    assert (found.below, found.above) == (np.sum(good < edges[0]), np.sum(good > edges[-1]))
    counts = np.histogram(good, edges)[0]
    counts[0] += found.below
    counts[-1] += found.above
    assert list(found.counts) == counts.tolist()
    assert sum(found.counts) == good.size


@quick
@given(
    tensor=views(), bins=st.integers(1, 50), held=st.booleans(), block=st.sampled_from([2, 16, blocks.BLOCK])
)
def test_any_view_equals_float64_numpy(tensor: torch.Tensor, bins: int, held: bool, block: int) -> None:
    most = module.SORTED if held else 0
    with mock.patch.object(module, "SORTED", most), mock.patch.object(blocks, "BLOCK", block):
        found = spread(tensor, bins=bins)
    values = as_float64(tensor)
    if not np.isfinite(values).any():
        assert found is None
        return
    assert found is not None and found.sampled is None
    assert_right(found, values)


@quick
@given(
    values=st.lists(st.floats(width=32, allow_subnormal=True), min_size=1, max_size=40),
    dtype=st.sampled_from(FLOATS),
    held=st.booleans(),
)
def test_any_floats_equal_float64_numpy(values: list[float], dtype: torch.dtype, held: bool) -> None:
    tensor = torch.tensor(values, dtype=torch.float64).to(dtype)
    with mock.patch.object(module, "SORTED", module.SORTED if held else 0):
        found = spread(tensor)
    if found is None:
        assert not tensor.isfinite().any()
    else:
        assert_right(found, as_float64(tensor))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("held", [True, False])
def test_many_values(dtype: torch.dtype, held: bool) -> None:
    base = torch.randn(300_001, generator=generator())
    cases = [base, base * 1e-3 + 1000, base.relu(), base.exp() ** 4, base * torch.finfo(dtype).tiny / 4]
    for tensor in cases:
        with mock.patch.object(module, "SORTED", module.SORTED if held else 0):
            assert_right(look(tensor.to(dtype)), as_float64(tensor.to(dtype)))


def test_float64_at_its_ends() -> None:
    for values in ([1.7e308, -1.7e308, 0.0], [1e-320, 0.0], [1e-310, 1.0], [1.7e308] * 3):
        for most in (module.SORTED, 0):
            with mock.patch.object(module, "SORTED", most):
                found = look(torch.tensor(values, dtype=torch.float64))
            assert (found.percentiles[0][1], found.percentiles[-1][1]) == (min(values), max(values))
            assert found.median == pytest.approx(sorted(values)[1] / (1 if len(values) == 3 else 2))
            assert sum(found.counts) == len(values)
            assert all(map(math.isfinite, found.edges))


@pytest.mark.parametrize("share", [0.0, 0.6], ids=["normal", "mostly zero"])
def test_one_huge_value_does_not_squash_the_rest(share: float) -> None:
    tensor = torch.randn(10_000, generator=generator())
    tensor[torch.rand(10_000, generator=generator()) < share] = 0
    plain = look(tensor)
    assert (plain.below, plain.above) == (0, 0)
    tensor[17] = 1e30
    found = look(tensor)
    assert (found.below, found.above, found.percentiles[-1][1]) == (0, 1, pytest.approx(1e30))
    assert found.edges[-1] < 20 and found.edges[0] == pytest.approx(float(tensor.min()))
    assert sum(found.counts) == 10_000
    assert sum(count > 0 for count in found.counts) > 15
    assert found.outliers == (0 if share else 1)


@pytest.mark.parametrize("value", [0.0, 3.0, -1e20, 1e-40])
def test_all_the_same(value: float) -> None:
    found = look(torch.full((100,), value))
    assert (found.median, found.mad, found.outliers) == (pytest.approx(value), 0, 0)
    assert max(found.counts) == 100
    assert found.edges[0] < found.median < found.edges[-1]


def test_a_sample_says_so_and_some_are_never_sampled() -> None:
    tensor = torch.randn(5000, generator=generator())
    found = look(tensor, limit=1000)
    assert found.sampled is not None and 500 < found.sampled <= 1000
    assert sum(found.counts) == found.sampled
    assert found.median == pytest.approx(0, abs=0.2)
    assert_right(look(tensor, limit=1000, exact=True), as_float64(tensor))
    for dtype in (torch.bfloat16, torch.float16, torch.int8, torch.bool, torch.float8_e5m2):
        exact = look(tensor.to(dtype), limit=1000)
        assert exact.sampled is None
        assert_right(exact, as_float64(tensor.to(dtype)))


def test_an_expanded_tensor_counts_each_copy() -> None:
    tensor = torch.tensor([1.0, 2.0, 7.0, NAN]).expand(5, 4)
    assert_right(look(tensor), as_float64(tensor))
    huge = look(kinds()["expanded"])
    assert (huge.median, sum(huge.counts), huge.nonfinite) == (1, 10**11, 10**11)


def test_the_magnitude_of_complex_and_the_value_of_quantized() -> None:
    zoo = kinds()
    assert_right(look(zoo["conj"]), [5, 0])
    assert_right(look(zoo["qint8"]), as_float64(zoo["qint8"].dequantize()))
    assert_right(look(zoo["negative"].to(torch.float16)), [-2, 4])
    assert_right(look(torch._neg_view(torch.tensor([1.0, 2.0], dtype=torch.float16))), [-1, -2])


def test_nothing_to_read() -> None:
    assert spread(torch.empty(0)) is spread(torch.full((3,), NAN)) is spread(torch.tensor([INF])) is None
    assert spread(torch.ones(3, device="meta")) is None
    nonsense: Any = "no tensor"
    assert spread(nonsense) is None
    assert look(torch.ones(3), bins=0).counts == (3,)


@pytest.mark.filterwarnings("ignore")
def test_no_odd_tensor_raises() -> None:
    found = [spread(tensor, limit=limit) for tensor in odd_tensors() for limit in (3, 1 << 24)]
    assert sum(each is not None for each in found) > 300


def test_a_lazy_clone_stays_one() -> None:
    is_lazy = torch._C._is_cow_tensor  # type: ignore[attr-defined]
    for dtype in (torch.float32, torch.bfloat16):
        clone = torch._lazy_clone(torch.arange(12.0).to(dtype))
        assert look(clone).median == 5.5
        assert is_lazy(clone)
