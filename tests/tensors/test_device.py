"""The reductions of accelerators, on the processor: the same function, the same answers."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given

from layerstep.tensors import counting, device
from layerstep.tensors.counting import Stats
from layerstep.tensors.kinds import open_values
from tensor_cases import FLOAT8, FLOATS, INF, NAN, as_float64, assert_same, generator, quick, truth, views


def on_device(tensor: torch.Tensor, *, limit: int | None = None) -> Stats:
    """As if the tensor were on an accelerator: the block path is closed."""
    no_blocks = mock.patch.object(counting, "_count", side_effect=AssertionError("the host has counted"))
    with mock.patch.object(torch.Tensor, "is_cpu", False), no_blocks:
        return counting.measure(open_values(tensor), limit)


@quick
@given(tensor=views())
def test_any_view_equals_float64_numpy(tensor: torch.Tensor) -> None:
    assert_same(on_device(tensor), truth(as_float64(tensor)))


@pytest.mark.parametrize("limit", [None, 1000])
@pytest.mark.parametrize("dtype", [*FLOATS, *FLOAT8, torch.complex64, torch.int64, torch.uint8, torch.bool])
def test_it_agrees_with_the_blocks(dtype: torch.dtype, limit: int | None) -> None:
    base = torch.randn(50, 301, generator=generator()) * 3
    tensor = (base.abs() if dtype == torch.uint8 else base).to(dtype).t()
    found, right = on_device(tensor, limit=limit), counting.measure(open_values(tensor), limit)
    assert_same(found, right)
    assert (found.subnormal, found.sampled) == (right.subnormal, right.sampled)


@pytest.mark.parametrize("wide", [True, False], ids=["float64", "float32"])
def test_hard_values(wide: bool) -> None:
    far = torch.randn(100_000, generator=generator()) * 1e-3 + 1000
    cases = [
        far,
        torch.tensor([3e38, -3e38, 1.0] * 1000),
        torch.tensor([1e-30, 2e-30]),
        torch.full((100_000,), 65504.0, dtype=torch.float16),
        torch.tensor([NAN, INF, -INF]),
        torch.tensor([1.0, NAN, INF, -INF, 0.0, -0.0]),
        torch.ones(5),
    ]
    with mock.patch.object(device, "_has_float64", lambda _: wide):
        for tensor in cases:
            assert_same(on_device(tensor), truth(as_float64(tensor)))


def test_pieces_come_over_in_one_transfer() -> None:
    tensor, transfers = torch.randn(1000, generator=generator()), 0
    original = torch.Tensor.cpu

    def cpu(self: torch.Tensor, *rest: Any) -> torch.Tensor:
        nonlocal transfers
        transfers += 1
        assert self.numel() < 1000
        return original(self, *rest)

    with mock.patch.object(counting, "PIECE", 64), mock.patch.object(torch.Tensor, "cpu", cpu):
        found = on_device(tensor)
    assert transfers == 1
    assert_same(found, truth(as_float64(tensor)))


def test_a_device_without_the_ops_is_read_in_blocks() -> None:
    tensor = torch.tensor([1.0, -2.0, 0.0])
    lacking = mock.patch.object(counting, "count_on_device", side_effect=NotImplementedError)
    with mock.patch.object(torch.Tensor, "is_cpu", False), lacking:
        assert_same(counting.measure(open_values(tensor), None), truth([1, -2, 0]))
