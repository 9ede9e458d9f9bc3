"""Only what is certain is said."""

from __future__ import annotations

import math

import pytest
import torch

from layerstep.tensors.risk import risks
from tensor_cases import stats


def words(tensor: torch.Tensor, limit: int | None = None) -> str:
    return "; ".join(risks(tensor.dtype, stats(tensor, limit=limit)))


@pytest.mark.parametrize(
    ("tensor", "start"),
    [
        (torch.tensor([1.0, -2.0]), ""),
        (torch.tensor([1, 2]), ""),
        (torch.tensor(1.0), ""),
        (torch.full((3,), math.nan), ""),
        (torch.zeros(3), "all values are zero"),
        (torch.tensor([0.0, -0.0, math.nan]), "all finite values are zero"),
        (torch.full((3,), 2.5), "all values are 2.5"),
        (torch.tensor([7, 7]), "all values are 7"),
        (torch.tensor([7.0, 7.0, math.inf]), "all finite values are 7"),
        (
            torch.tensor([60000.0, 1.0]).half(),
            "near overflow: the largest magnitude 6e+04 is 92% of what f16",
        ),
        (torch.tensor([2e38, 1.0]).bfloat16(), "near overflow"),
        (torch.tensor([1e-6, 1.0, 2.0]).half(), "underflow: 33% of the values are subnormal in f16"),
        (torch.tensor([1e5, 1.0]), "would overflow in f16: the largest magnitude is 1e+05"),
        (torch.tensor([1e5, 1.0]).bfloat16(), "would overflow in f16"),
        (torch.tensor([65519.0, 1.0]), ""),
        (torch.tensor([65520.0, 1.0]), "would overflow in f16"),
        (torch.tensor([1e-8, 2e-8]), "would vanish in f16"),
        (torch.tensor([1e-8, 1.0]), ""),
        (torch.tensor([1e5 + 1e5j, 0j]), "would overflow in f16"),
        (torch.tensor([3e9, 1.0]), "very large: |x| up to 3e+09"),
    ],
)
def test_risks(tensor: torch.Tensor, start: str) -> None:
    found = words(tensor)
    assert found.startswith(start) and bool(found) == bool(start)


@pytest.mark.parametrize("value", [65519.0, 65520.0, 2.0**-25, 2.0**-25 * 1.001])
def test_what_is_said_of_f16_happens(value: float) -> None:
    tensor = torch.tensor([value, value / 2])
    cast = tensor.half()
    assert ("would overflow" in words(tensor)) == bool(cast.isinf().any())
    assert ("would vanish" in words(tensor)) == (not cast.any())


def test_a_sample_does_not_speak_for_all() -> None:
    tensor = torch.zeros(100)
    tensor[50] = 1
    assert words(tensor, limit=3) == ""
