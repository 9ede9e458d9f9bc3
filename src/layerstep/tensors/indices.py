"""Indices: from a place among the stored values to the index in the tensor itself."""

from __future__ import annotations

from typing import Any

import torch

from layerstep._torch import functorch_inner
from layerstep._torch.tensors import indices_of_sparse, jagged
from layerstep.tensors import kinds

__all__ = ["Index", "outer_index"]

Index = tuple[int, ...]


def outer_index(tensor: Any, number: int, index: Index) -> Index:
    """The index in the tensor of the element at `index` in part `number` of `open_values`."""
    tensor = functorch_inner(tensor)
    if tensor.is_nested:
        return _nested(tensor, number, index)
    if tensor.layout == torch.sparse_coo:
        return _coordinates(tensor, index)
    if tensor.layout in _BY_ROW or tensor.layout in _BY_COLUMN:
        return _compressed(tensor, index)
    return index


def _nested(tensor: Any, number: int, index: Index) -> Index:
    if tensor.layout == torch.strided or (parts := jagged(tensor)).lengths is not None:
        return (number, *index)
    ragged = parts.ragged - 1
    offsets = parts.offsets.cpu()
    part = int(torch.searchsorted(offsets, index[ragged], right=True)) - 1
    return (part, *index[:ragged], index[ragged] - int(offsets[part]), *index[ragged + 1 :])


def _coordinates(tensor: torch.Tensor, index: Index) -> Index:
    tensor = tensor.detach()
    if not tensor.is_coalesced() and kinds.bytes_of(tensor, "sparse_coo") <= kinds.COPY_LIMIT:
        tensor = tensor.coalesce()  # as it is read
    return (*indices_of_sparse(tensor)[:, index[0]].tolist(), *index[1:])


_BY_ROW = (torch.sparse_csr, torch.sparse_bsr)
_BY_COLUMN = (torch.sparse_csc, torch.sparse_bsc)


def _compressed(tensor: torch.Tensor, index: Index) -> Index:
    """Batch dimensions, the number of a value or block, the place in the block, dense dimensions."""
    by_row, blocked = tensor.layout in _BY_ROW, tensor.layout in (torch.sparse_bsr, torch.sparse_bsc)
    starts = tensor.crow_indices() if by_row else tensor.ccol_indices()
    others = tensor.col_indices() if by_row else tensor.row_indices()
    batch, (number, *rest) = index[: starts.dim() - 1], index[starts.dim() - 1 :]
    line = int(torch.searchsorted(starts[batch].contiguous(), number, right=True)) - 1
    other = int(others[(*batch, number)])
    row, column = (line, other) if by_row else (other, line)
    if blocked:
        height, width = tensor.values().shape[starts.dim() : starts.dim() + 2]
        row, column, rest = row * height + rest[0], column * width + rest[1], rest[2:]
    return (*batch, row, column, *rest)
