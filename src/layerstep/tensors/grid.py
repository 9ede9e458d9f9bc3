"""A matrix small enough to look at: two dimensions of any tensor, as means of blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from layerstep._torch import below_everything
from layerstep._torch.tensors import as_numpy
from layerstep.tensors.kinds import COPY_LIMIT, Part, open_values
from layerstep.tensors.pooling import block_means

__all__ = ["Grid", "grid_of"]

Matrix = npt.NDArray[np.float64]

READ = 1 << 22
"""The most elements to read: of a larger matrix, rows and columns are skipped evenly."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows of means, the size of a block, the place of the matrix in its tensor.

    Without rows the note says why.
    """

    rows: tuple[tuple[float, ...], ...]
    block: tuple[int, int] = (1, 1)
    place: str = ""
    note: str = ""


def grid_of(tensor: torch.Tensor, dims: tuple[int, int] | None = None, *, most: tuple[int, int]) -> Grid:
    """Two dimensions of a tensor (default: the last two), the others at 0, as at most `most` rows and
    columns.

    Never raises. A block with a NaN or an infinity in it is not finite.
    """
    with below_everything(), np.errstate(all="ignore"):
        try:
            return _grid(tensor, dims, most)
        except Exception as error:  # a kind of tensor unknown here must not end the user's run
            return Grid((), note=f"values cannot be read: {type(error).__name__}")


def _grid(tensor: torch.Tensor, dims: tuple[int, int] | None, most: tuple[int, int]) -> Grid:
    part, note = _opened(tensor)
    if part is None:
        return Grid((), note=note)
    if not part[0].numel():
        return Grid((), note="it has no elements")
    rank = part[0].dim()
    if rank < 2:
        part = tuple(each.reshape(1, -1) for each in part)
        chosen, place = (0, 1), ""
    else:
        chosen = (rank - 2, rank - 1) if dims is None else (dims[0] % rank, dims[1] % rank)
        place = "" if rank == 2 else _place(rank, chosen)
        if chosen[0] == chosen[1]:  # a part of a nested tensor has one dimension less
            return Grid((), note="its parts have no such dimensions")
    part = tuple(_matrix(each, chosen) for each in part)
    return _means(part, most, place, note)


def _opened(tensor: torch.Tensor) -> tuple[Part | None, str]:
    """The values in the tensor's own shape, if they can be read."""
    values = open_values(tensor)
    if values.parts is None:
        return None, values.note
    if values.layout.startswith("sparse"):
        if math.prod(tensor.shape) * tensor.element_size() > COPY_LIMIT:
            return None, "too large to unpack only for a look"
        return (tensor.detach().to_dense(),), ""
    if not values.parts:
        return None, "it has no elements"
    several = f"the first of {len(values.parts)} parts" if len(values.parts) > 1 else ""
    packed = "all parts, one after the other" if values.layout == "nested" and not several else ""
    return values.parts[0], ", ".join(filter(None, (values.note, several or packed)))


def _place(rank: int, chosen: tuple[int, int]) -> str:
    return f"at [{', '.join('·' if dim in chosen else '0' for dim in range(rank))}]"


def _matrix(tensor: torch.Tensor, chosen: tuple[int, int]) -> torch.Tensor:
    for dim in reversed(range(tensor.dim())):
        if dim not in chosen:
            tensor = tensor.select(dim, 0)
    return tensor if chosen[0] < chosen[1] else tensor.t()


def _means(part: Part, most: tuple[int, int], place: str, note: str) -> Grid:
    shape = (part[0].shape[0], part[0].shape[1])
    steps = _steps(shape)
    kept = tuple(each[:: steps[0], :: steps[1]] for each in part)
    blocks = [-(-size // limit) for size, limit in zip(kept[0].shape, most, strict=True)]
    rows = block_means(_numbers(kept), blocks[0], blocks[1])
    if steps != (1, 1):
        note = ", ".join(filter(None, (note, f"read one in {steps[0]} rows, one in {steps[1]} columns")))
    return Grid(
        tuple(tuple(row) for row in rows.tolist()),
        (blocks[0] * steps[0], blocks[1] * steps[1]),
        place,
        note,
    )


def _steps(shape: tuple[int, int]) -> tuple[int, int]:
    """Read one in so many rows and columns, to read at most READ elements."""
    down = across = 1
    while -(-shape[0] // down) * -(-shape[1] // across) > READ:
        if shape[0] // down > shape[1] // across:
            down += -(-down // 8)
        else:
            across += -(-across // 8)
    return down, across


def _numbers(part: Part) -> Matrix:
    lead, *affine = (each.cpu() for each in part)
    if lead.is_complex():
        plain = lead.to(torch.complex128, copy=True).resolve_conj().resolve_neg()
        return np.asarray(np.abs(as_numpy(plain)), dtype=np.float64)
    values = lead.to(torch.float64, copy=True).resolve_neg()  # of a lazy clone `numpy` would copy all
    if affine:
        values = (values - affine[0]) * affine[1]
    numbers: Matrix = as_numpy(values)
    return numbers
