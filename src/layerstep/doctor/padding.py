"""Which tokens of a batch are padding: told by a mask among the arguments, or by the embedding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from layerstep._torch.tensors import is_tensor
from layerstep.doctor.tried_rows import is_square_mask

__all__ = ["Padding", "padding_of"]

LEAST = 4
"""Real tokens that a padded row must have."""


@dataclass(frozen=True, slots=True)
class Padding:
    """Padding at the end of rows."""

    lengths: list[int]
    """How many real tokens each row has."""
    row: int
    """The row with the most padding that still has enough real tokens."""
    known_by: str


def padding_of(named: Mapping[str, Any], name: str, tokens: Tensor, model: nn.Module) -> Padding | None:
    """The padding of a batch; None if there is none, or if it is not at the end of the rows.

    A mask may be made either way round, so its values say nothing: the end of a row that it treats unlike
    the beginning, and that holds the same token throughout, is the padding.
    """
    for key, mask in named.items():
        if key != name and is_tensor(mask) and _may_tell(key, mask, tokens):
            ends = (mask == mask[:, -1:]).flip(1).int().cumprod(1).sum(1)
            ends = torch.where(ends == mask.shape[1], torch.zeros_like(ends), ends)
            found = _padding(tokens, ends, key)
            if found is not None:
                return found
    for path, part in model.named_modules():
        if isinstance(part, nn.Embedding) and part.padding_idx is not None:
            marks = tokens == part.padding_idx
            ends = marks.flip(1).int().cumprod(1).sum(1)
            return _padding(tokens, ends, f"padding_idx of {path}") if _is_only_at_ends(marks, ends) else None
    return None


def _is_only_at_ends(marks: Tensor, ends: Tensor) -> bool:
    """Is it at the ends of rows alone, and more than once in one of them? A model of transformers has a
    `padding_idx` whatever its data are: there the number may be a token like any other.
    """
    return int(marks.sum()) == int(ends.sum()) and int(ends.max()) > 1


def _may_tell(key: str, mask: Tensor, tokens: Tensor) -> bool:
    is_mask = "mask" in key.lower() and mask.shape == tokens.shape
    return is_mask and not is_square_mask(mask, int(tokens.shape[1]))


def _padding(tokens: Tensor, ends: Tensor, known_by: str) -> Padding | None:
    width = int(tokens.shape[1])
    lengths = [width - int(end) for end in ends]
    padded = [row for row, length in enumerate(lengths) if LEAST <= length < width]
    ends_of_rows = [tokens[row, lengths[row] :] for row in padded]
    if not padded or len(torch.unique(torch.cat(ends_of_rows))) > 1:
        return None
    return Padding(lengths, min(padded, key=lengths.__getitem__), known_by)
