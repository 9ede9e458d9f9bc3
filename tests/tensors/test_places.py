"""Where things are, against numpy; in every kind of tensor the index finds the value."""

from __future__ import annotations

import warnings
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layerstep.tensors import blocks
from layerstep.tensors.places import ValuePlaces, extremes, find_places
from layerstep.tensors.spread import spread
from tensor_cases import INF, NAN, Ops, as_float64, generator, kinds, odd_tensors, quick, views

BLOCKS = st.sampled_from([1, 2, 5, 16, blocks.BLOCK])


def first(test: Any) -> tuple[int, ...] | None:
    return tuple(np.argwhere(test)[0].tolist()) if test.any() else None


def right_places(values: Any) -> ValuePlaces:
    good = np.isfinite(values)
    low, high = (values[good].min(), values[good].max()) if good.any() else (NAN, NAN)
    return ValuePlaces(
        first(np.isnan(values)), first(np.isinf(values)), first(values == low), first(values == high)
    )


def right_extremes(values: Any, k: int, *, largest: bool) -> list[tuple[tuple[int, ...], float]]:
    rows = [(index, float(value)) for index, value in np.ndenumerate(values) if value == value]
    return sorted(rows, key=lambda row: (-row[1] if largest else row[1], row[0]))[:k]


@quick
@given(tensor=views(), block=BLOCKS)
def test_places_in_any_view(tensor: torch.Tensor, block: int) -> None:
    with mock.patch.object(blocks, "BLOCK", block):
        assert find_places(tensor) == right_places(np.asarray(as_float64(tensor)))


@quick
@given(tensor=views(), block=BLOCKS, k=st.integers(0, 12), largest=st.booleans())
def test_extremes_of_any_view(tensor: torch.Tensor, block: int, k: int, largest: bool) -> None:
    with mock.patch.object(blocks, "BLOCK", block):
        found = extremes(tensor, k, largest=largest)
    assert found == right_extremes(np.asarray(as_float64(tensor)), k, largest=largest)


def test_in_the_middle_of_many() -> None:
    tensor = torch.randn(700, 1000, generator=generator())
    tensor[3, 4], tensor[600, 7], tensor[650, 999], tensor[2, 0] = NAN, INF, -1e9, 1e9
    assert find_places(tensor) == ValuePlaces((3, 4), (600, 7), (650, 999), (2, 0))
    assert extremes(tensor, 2, largest=True)[:2] == [((600, 7), INF), ((2, 0), 1e9)]
    assert extremes(tensor.sort().values, 1, largest=False) == [((650, 0), -1e9)]


def dense(tensor: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tensor.dequantize() if tensor.is_quantized else tensor.to_dense()


@pytest.mark.parametrize(
    "name",
    ["sparse_coo", "uncoalesced", "hybrid", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc",
     "qint8", "quint8 by channel", "qint32", "quint4x2", "mkldnn", "conj", "complex64", "unfolded",
     "parameter"],
)  # fmt: skip
@pytest.mark.parametrize("largest", [True, False])
def test_the_index_finds_the_value(name: str, largest: bool) -> None:
    tensor = kinds()[name]
    whole = (dense(tensor) if name not in ("conj", "complex64") else tensor.abs()).detach()
    found = extremes(tensor, 4, largest=largest)
    assert found
    for index, value in found:
        assert len(index) == tensor.dim()
        assert float(whole[index]) == value
    places = find_places(tensor)
    assert (places.argmax if largest else places.argmin) == found[0][0]


@pytest.mark.filterwarnings("ignore")
def test_compressed_with_batches_and_blocks() -> None:
    base = torch.arange(1.0, 49.0).view(2, 4, 6)
    for tensor in (base.to_sparse_csr(), base.to_sparse_bsr((2, 3)), base.to_sparse_bsc((2, 3))):
        assert extremes(tensor, 3, largest=True) == [((1, 3, 5), 48), ((1, 3, 4), 47), ((1, 3, 3), 46)]
        assert extremes(tensor, 8, largest=False)[7] == ((0, 1, 1), 8)


@pytest.mark.parametrize("name", ["nested", "jagged", "holes"])
def test_nested_begins_with_the_part(name: str) -> None:
    tensor = kinds()[name]
    parts = tensor.unbind()
    found = extremes(tensor, 100, largest=True)
    assert len(found) == sum(part.numel() for part in parts)
    assert all(float(parts[index[0]][index[1:]]) == value for index, value in found)
    assert len({index for index, _ in found}) == len(found)


def test_expanded_copies_count() -> None:
    tensor = torch.tensor([[5.0], [1.0], [5.0]]).expand(3, 4)
    assert [index for index, _ in extremes(tensor, 5, largest=True)] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (0, 3),
        (2, 0),
    ]
    huge = kinds()["expanded"]
    assert find_places(huge) == ValuePlaces((0, 0, 1), None, (0, 0, 0), (0, 0, 0))
    assert extremes(huge, 2, largest=False) == [((0, 0, 0), 1.0), ((0, 1, 0), 1.0)]


@pytest.mark.filterwarnings("ignore")
def test_no_odd_tensor_raises() -> None:
    seen = 0
    for tensor in odd_tensors():
        found = extremes(tensor, 3, largest=True)
        assert isinstance(find_places(tensor), ValuePlaces)
        seen += bool(found)
    assert seen > 150


def test_nothing_to_find() -> None:
    nonsense: Any = "no tensor"
    for tensor in (torch.empty(0), torch.ones(2, device="meta"), nonsense):
        assert find_places(tensor) == ValuePlaces()
        assert extremes(tensor, 3, largest=True) == []
    assert extremes(torch.tensor([NAN]), 3, largest=True) == extremes(torch.ones(3), -1, largest=True) == []


@pytest.mark.filterwarnings("ignore")
def test_modes_see_nothing_and_no_randomness_is_drawn() -> None:
    zoo, state = kinds(), torch.get_rng_state()
    with Ops() as ops:
        for tensor in zoo.values():
            find_places(tensor)
            extremes(tensor, 2, largest=True)
            spread(tensor, limit=2)
    assert ops.seen == []
    assert torch.equal(torch.get_rng_state(), state)


def test_a_tensor_expanded_to_a_billion_elements_is_not_listed() -> None:
    huge = torch.zeros(1).expand(1 << 30)
    assert find_places(huge).argmax == (0,)
    assert extremes(huge, 2, largest=True) == [((0,), 0.0), ((1,), 0.0)]
