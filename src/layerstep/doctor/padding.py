"""Which tokens of a batch are padding: told by a mask or lengths among the arguments, the embedding, the
labels, or the tokens themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from layerstep._torch.tensors import is_tensor
from layerstep.doctor.tried_rows import is_square_mask

__all__ = ["Padding", "padding_of"]

ROWS = 3
"""Rows that end in the same token more than once: then it is padding."""
LEAST = 4
"""Real tokens that a padded row must have."""


@dataclass(frozen=True, slots=True)
class Padding:
    """Padding at one end of the rows."""

    lengths: list[int]
    """How many real tokens each row has."""
    row: int
    """The row with the most padding that still has enough real tokens."""
    known_by: str
    is_left: bool = False
    """Is it before the real tokens?"""


Labels = Sequence[tuple[Tensor, int | None]]
"""The labels of the loss, and the number that is ignored."""


def padding_of(
    named: Mapping[str, Any], name: str, tokens: Tensor, model: nn.Module, labels: Labels = ()
) -> Padding | None:
    """The padding of a batch; None if there is none, or if it is not at one end of the rows."""
    found = _on_the_right(named, name, tokens, model)
    if found is not None:
        return found
    flipped = {key: mask.flip(1) for key, mask in named.items() if is_tensor(mask) and mask.ndim == 2}
    found = _on_the_right(flipped, name, tokens.flip(1), model)
    if found is not None:
        return replace(found, is_left=True)
    for is_left in (False, True):
        found = _by_labels(tokens, labels, is_left=is_left)
        if found is not None:
            return found
    return _by_lengths(named, tokens) or _by_the_data(tokens)


def _by_lengths(named: Mapping[str, Any], tokens: Tensor) -> Padding | None:
    """An argument tells how many tokens each row has."""
    batch, width = tokens.shape
    for key, value in named.items():
        if not any(word in key.lower() for word in ("len", "size")):
            continue
        is_list = type(value) in (list, tuple) and all(type(each) is int for each in value)
        lengths = torch.tensor(value) if is_list else value if is_tensor(value) else None
        if lengths is None or tuple(lengths.shape) != (batch,) or lengths.is_floating_point():
            continue
        if int(lengths.min()) > 0 and int(lengths.max()) <= width:
            found = _padding(tokens, (width - lengths).cpu(), key)
            if found is not None:
                return found
    return None


def _by_the_data(tokens: Tensor) -> Padding | None:
    """One token fills the ends of several rows by different lengths, and is nowhere else in the batch."""
    runs = (tokens == tokens[:, -1:]).flip(1).int().cumprod(1).sum(1)
    filler = tokens[int(runs.argmax()), -1]
    ends = torch.where(tokens[:, -1] == filler, runs, 0)
    long = ends[ends > 1]
    if len(long) < ROWS or len(torch.unique(long)) < 2 or not _is_only_at_ends(tokens == filler, ends):
        return None
    return _padding(tokens, ends, "the data")


def _by_labels(tokens: Tensor, labels: Labels, *, is_left: bool) -> Padding | None:
    """One token fills an end of some rows, is nowhere else, and the loss ignores its places."""
    rows = tokens.flip(1) if is_left else tokens
    runs = (rows == rows[:, -1:]).flip(1).int().cumprod(1).sum(1)
    filler = rows[int(runs.argmax()), -1]
    ends = torch.where(rows[:, -1] == filler, runs, 0)
    if not _is_only_at_ends(rows == filler, ends):
        return None
    width = int(tokens.shape[1])
    for target, ignored in labels:
        if ignored is None or target.numel() not in (tokens.numel(), len(tokens) * (width - 1)):
            continue
        own = target.reshape(len(tokens), -1)
        own = own.flip(1) if is_left else own
        # A label may be that of the next token, so the last place of a run need not be ignored.
        inside = torch.arange(own.shape[1]).flip(0)[None] < (ends - 1)[:, None].cpu()
        if bool((own.cpu()[inside] == ignored).all()):
            found = _padding(rows, ends, "the labels")
            return found and replace(found, is_left=is_left)
    return None


def _on_the_right(named: Mapping[str, Any], name: str, tokens: Tensor, model: nn.Module) -> Padding | None:
    """The padding at the end of rows.

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
