"""Tensors as facts: inputs, targets, parameters before and after a step. Each function reads, and writes
nothing.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from layerstep.doctor.facts import CriterionFacts, InputFacts, OutlierFacts, ParameterLook, TargetFacts
from layerstep.doctor.loss_graph import Criterion
from layerstep.tensors.kinds import readable
from layerstep.tensors.shapes import attempt, dtype_name, shape_of
from layerstep.tensors.summary import summarize

__all__ = [
    "SAMPLED",
    "Copy",
    "copy_of",
    "criterion_facts",
    "input_facts",
    "look_at",
    "outlier_of",
    "rows_of",
    "shift_of",
]

SAMPLED = 1 << 16
"""Elements of a parameter, an input or a target that are looked at; of a larger one evenly spread ones."""
ROWS = 64
IN_A_ROW = 512
TEXT = 8
"""Whole numbers of a row that may be a text with padding; fewer are columns of a table."""
TOKENS_IN_A_ROW = 2048
SHIFTS = (0, 1, 2, -1)
LARGEST = 1 << 22
"""Elements of a batch that is searched for an outlier."""
ALONE = 20.0
"""Times the sample after it: then it is an outlier. The heaviest tails of healthy data have less than 10."""
ALIKE = 8
"""Rows of a weight that are compared with the one after them, evenly spread."""
MOST_ALIKE = 0.75
"""Of these pairs. Where several weights lie in one, as those of query, key and value, rows at their borders
differ."""


def _sample(tensor: Tensor, most: int = SAMPLED) -> Tensor:
    """Its elements in one row, at most so many, as a copy."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, -(-flat.numel() // most))].clone()


def rows_of(tensor: Tensor, *, most: int = ROWS) -> tuple[int, ...]:
    """A checksum of each of the first samples of a batch; nothing where there is no batch."""
    if tensor.ndim < 1 or not is_readable(tensor) or tensor.is_complex():
        return ()
    rows = tensor.detach()[:most].reshape(min(len(tensor), most), -1)
    if tensor.dtype in (torch.int64, torch.int32) and rows.shape[1] >= TEXT:
        return _tokens(rows[:, :TOKENS_IN_A_ROW].cpu().clone())
    rows = rows[:, :: max(1, -(-rows.shape[1] // IN_A_ROW))].contiguous().clone()
    raw = rows.cpu().view(torch.uint8) if rows.dtype is not torch.bool else rows.cpu().to(torch.uint8)
    table = raw.numpy()  # of our own copy
    return tuple(zlib.crc32(row.tobytes()) for row in table)


def _tokens(rows: Tensor) -> tuple[int, ...]:
    """Checksums of rows of tokens without the padding behind them: a text has more or less of it, as its
    batch wants. What ends the row with the longest run of equal tokens is taken for padding.
    """
    table = rows.numpy()  # of our own copy
    runs = (rows == rows[:, -1:]).flip(1).int().cumprod(1).sum(1)
    padded = int(runs.argmax())
    if runs[padded] < 2:
        return tuple(zlib.crc32(row.tobytes()) for row in table)
    ends = torch.where(rows[:, -1] == rows[padded, -1], runs, 0).tolist()
    return tuple(zlib.crc32(row[: len(row) - end].tobytes()) for row, end in zip(table, ends, strict=True))


def is_readable(tensor: Tensor) -> bool:
    """Can its values be read directly from memory? Sparse, nested and wrapped tensors are left out."""
    parts, _ = readable(tensor)
    return len(parts) == 1 and parts[0] is tensor and tensor.numel() > 0


def input_facts(name: str, tensor: Tensor, *, deep: bool) -> InputFacts:
    """A tensor that a model was called with, or that it returned. `deep` looks at its values."""
    dtype = attempt(lambda: dtype_name(tensor.dtype), "?")
    shape = attempt(lambda: shape_of(tensor), ())
    if not deep or not is_readable(tensor):
        return InputFacts(name, dtype, shape)
    stats = summarize(tensor, limit=SAMPLED, brief=True).stats
    if stats is None:
        return InputFacts(name, dtype, shape)
    return InputFacts(
        name,
        dtype,
        shape,
        mean=stats.mean if stats.mean is not None else math.nan,
        std=stats.std if stats.std is not None else math.nan,
        low=stats.min if stats.min is not None else math.nan,
        high=stats.max if stats.max is not None else math.nan,
        nonfinite=stats.nan + stats.posinf + stats.neginf,
    )


def outlier_of(name: str, tensor: Tensor) -> OutlierFacts | None:
    """The sample of a batch that is by far the largest; the distance from the median is asked, so that an
    offset of all does not count. None where no sample stands out.
    """
    if not tensor.is_floating_point() or not is_readable(tensor) or tensor.ndim < 1 or len(tensor) < 3:
        return None
    if tensor.numel() > LARGEST:
        return None
    rows = tensor.detach().reshape(len(tensor), -1).double()
    most, order = (rows - rows.median()).abs().amax(dim=1).sort(descending=True)
    if not math.isfinite(float(most[0])) or float(most[0]) <= ALONE * max(float(most[1]), 1.0 / ALONE):
        return None  # the only one among zeros is no outlier
    return OutlierFacts(name, int(order[0]), float(most[0]), max(float(most[1]), 1e-30))


def criterion_facts(criterion: Criterion, tokens: Sequence[Tensor]) -> CriterionFacts:
    """A loss function of the graph, and the targets that it holds. `tokens`: the inputs of whole numbers."""
    low = high = spread = 0.0
    if criterion.input is not None and is_readable(criterion.input):
        stats = summarize(criterion.input, limit=SAMPLED, brief=True).stats
        if stats is not None and stats.mean is not None:
            low, high, spread = stats.min or 0.0, stats.max or 0.0, stats.std or 0.0
    return CriterionFacts(
        criterion.kind,
        criterion.reduction,
        criterion.classes,
        criterion.input_from,
        criterion.enlarged,
        target=_target(criterion, tokens),
        low=low,
        high=high,
        spread=spread,
        is_alone=criterion.is_alone,
        is_weighted=criterion.is_weighted,
        width=criterion.width,
        factor=criterion.factor,
        smoothing=criterion.smoothing,
        beside=criterion.beside,
    )


def _target(criterion: Criterion, tokens: Sequence[Tensor]) -> TargetFacts | None:
    target = criterion.target
    if target is None or not is_readable(target):
        return None
    values = _sample(target)
    dtype, shape = dtype_name(target.dtype), tuple(target.shape)
    if target.is_floating_point():
        wide = values.double()
        distinct = int(torch.unique(wide).numel()) if wide.numel() <= SAMPLED else 0
        return TargetFacts(
            dtype,
            shape,
            distinct,
            mean=float(wide.mean()),
            std=float(wide.std(correction=0)),
            guess=_guess(wide, criterion),
            floor=_floor(wide) if criterion.kind in ("bce", "bce_logits") else 0.0,
            rows=rows_of(target) if criterion.difference is None else (),  # the latter is rounded
        )
    ignored = values == criterion.ignore_index if criterion.ignore_index is not None else values != values
    labels, counts = torch.unique(values[~ignored], return_counts=True)
    table = dict(zip(labels.tolist(), counts.tolist(), strict=True))
    return TargetFacts(
        dtype,
        shape,
        len(table),
        counts={int(label): int(count) for label, count in table.items()},
        ignored=int(ignored.sum()),
        rows=rows_of(target),
        shift=shift_of(target, tokens, criterion.ignore_index),
    )


def _guess(targets: Tensor, criterion: Criterion) -> float:
    """The mean loss of the best single guess, of losses that are flatter than a square."""
    off = (targets - targets.median()).abs()
    turn = criterion.turn
    if criterion.kind == "l1":
        return float(off.mean())
    if criterion.kind in ("huber", "smooth_l1") and turn > 0:
        inside = off.square() / 2 if criterion.kind == "huber" else off.square() / (2 * turn)
        outside = turn * (off - turn / 2) if criterion.kind == "huber" else off - turn / 2
        return float(torch.where(off < turn, inside, outside).mean())
    return math.nan


def _floor(targets: Tensor) -> float:
    """The mean entropy of probabilities; 0 if they are none."""
    if float(targets.min()) < 0 or float(targets.max()) > 1:
        return 0.0
    return float(-(torch.xlogy(targets, targets) + torch.xlogy(1 - targets, 1 - targets)).mean())


def shift_of(target: Tensor, tokens: Sequence[Tensor], ignored: int | None) -> int | None:
    """By how many places the labels are the input moved, if they are."""
    for given in tokens:
        if given.ndim != 2 or given.is_floating_point() or given.shape[1] < 4 or not is_readable(given):
            continue
        batch = given.shape[0]
        if target.numel() % batch:
            continue
        labels = target.detach().reshape(batch, -1)
        if not given.shape[1] - 2 <= labels.shape[1] <= given.shape[1]:
            continue
        found = [shift for shift in SHIFTS if _is_shifted(given.detach(), labels, shift, ignored)]
        if len(found) == 1:
            return found[0]
    return None


def _is_shifted(given: Tensor, labels: Tensor, shift: int, ignored: int | None) -> bool:
    """Is label t the token t + shift, in every place where both are and the label counts?"""
    if shift < 0:
        given, labels = given[:, : labels.shape[1] + shift], labels[:, -shift:]
    else:
        given = given[:, shift:]
    width = min(given.shape[1], labels.shape[1])
    given, labels = given[:, :width], labels[:, :width]
    counts = labels != ignored if ignored is not None else torch.ones_like(labels, dtype=torch.bool)
    if int(counts.sum()) < max(4, width // 2) or int(torch.unique(labels[counts]).numel()) < 3:
        return False
    return bool((given[counts] == labels[counts]).float().mean() >= 0.99)


class Copy:
    """A parameter before a step: a copy, of a sample if it is large."""

    __slots__ = ("values", "whole")

    def __init__(self, values: Tensor, whole: bool) -> None:
        self.values = values
        self.whole = whole


def copy_of(parameter: Tensor) -> Copy:
    """What to compare with after the step."""
    return Copy(_sample(parameter), parameter.numel() <= SAMPLED)


def look_at(
    parameter: Tensor,
    before: Copy | None,
    size: tuple[float, float, float] | None,
    *,
    stuck: float = 0.0,
) -> ParameterLook:
    """A parameter after a step. `size`: mean, max and norm of its gradient, None where it had none."""
    mean, most, norm = size if size is not None else (0.0, 0.0, 0.0)
    if before is None:
        return ParameterLook(size is not None, norm, mean, most)
    now = _sample(parameter)
    wide, old = now.double(), before.values.double()
    weight, change = float(old.norm()), float((wide - old).norm())
    return ParameterLook(
        size is not None,
        norm,
        mean,
        most,
        weight_norm=weight * (1.0 if before.whole else math.sqrt(parameter.numel() / now.numel())),
        update=change / weight if weight else math.nan,
        moved=float((now != before.values).double().mean()),
        rows_alike=_rows_alike(parameter),
        columns_alike=parameter.ndim >= 2 and _rows_alike(parameter.movedim(-1, 0)),
        is_finite=bool(torch.isfinite(wide.sum())),
        stuck=stuck,
    )


def _rows_alike(parameter: Tensor) -> bool:
    """Are the rows of a weight equal, so that its units compute the same?"""
    if parameter.ndim < 2 or parameter.shape[0] < 2:
        return False
    count = parameter.shape[0]
    chosen = sorted({at * (count - 2) // (ALIKE - 1) for at in range(ALIKE)})
    table = parameter.detach().reshape(count, -1)
    table = table[:, :: max(1, -(-table.shape[1] // 4096))]
    pairs = (table[chosen] == table[[at + 1 for at in chosen]]).all(dim=1)
    return bool(pairs.float().mean() >= MOST_ALIKE)
