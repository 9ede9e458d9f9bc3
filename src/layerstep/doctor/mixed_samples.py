"""Do the samples of a batch act on each other, and does the order of places matter? Tried once, on a copy.

In evaluation mode the output of a sample hangs on that sample alone. The other samples of the last training
batch are replaced, and the copy is asked whether the outputs of those that stay change. A model that turns
its input round by mistake, or takes a softmax over the batch, shows itself so whatever its code is like.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from layerstep._torch import drop_hooks
from layerstep._torch.tensors import is_tensor, size_of
from layerstep.doctor.measuring import is_readable, shift_of
from layerstep.doctor.sequence_facts import LEAK, SampleFacts
from layerstep.doctor.traced import first_difference, softmax_sizes, trace
from layerstep.doctor.training_calls import TrainingCall
from layerstep.doctor.trial import changed, trying
from layerstep.doctor.tried_rows import is_attention
from layerstep.hooks.temporary import editing_calls
from layerstep.rerun.twins import twin_of
from layerstep.tensors.containers import tensors_of

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["look_at_samples"]

FEWEST = 4
"""Samples of a batch."""
PLACES = 4
MOST_BYTES = 256 << 20
"""Of the parameters and the batch: more is not run again unasked."""
_READERS = (nn.RNNBase, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


@dataclass(frozen=True, slots=True)
class _Batch:
    """A call whose inputs have a row for each sample."""

    call: TrainingCall
    model: nn.Module
    size: int
    kept: slice
    """The samples that are left as they are."""

    def run(self, change: Callable[[Tensor], Tensor] | None = None) -> Any:
        args, kwargs = self.call.arguments()
        if change is not None:
            args, kwargs = changed(args, change), changed(kwargs, change)
        return self.model(*args, **kwargs)

    def with_others(self, tensor: Tensor) -> Tensor:
        """The samples that are kept, and the first of them once more in place of each of the others."""
        if tensor.ndim < 1 or len(tensor) != self.size:
            return tensor
        made = tensor[self.kept][:1].repeat(self.size, *[1] * (tensor.ndim - 1))
        made[self.kept] = tensor[self.kept]
        return made


def look_at_samples(session: Session, call: TrainingCall) -> SampleFacts | None:
    """What a copy shows; None where samples and places cannot be told apart."""
    size = _size_of(call)
    if not size:
        return None
    model = session.run.models.by_root(call.module)
    name = model.name if model is not None else ""
    try:
        with trying(session, call.module), torch.no_grad():
            twin = twin_of(call.module).eval()
            drop_hooks(twin)
            if any(p.dtype in (torch.float16, torch.bfloat16) for p in twin.parameters()):
                return None
            halves = slice(0, size // 2), slice(size // 2, size)
            found = _look([_Batch(call, twin, size, kept) for kept in halves], name)
    except Exception:  # the model's own code, on other inputs than it expects, or one that cannot be copied
        return None
    if found is None or model is None:
        return found
    return found.at_paths(lambda path: session.run.models.full_path(model, path))


def _size_of(call: TrainingCall) -> int:
    """The number of samples, if each input has a row for each of them; else 0."""
    given = [t for t in tensors_of((call.args, call.kwargs)) if t.ndim]
    sizes = {int(t.shape[0]) for t in given}
    is_wide = any(t.ndim >= 2 for t in given)
    is_square = any(t.ndim == 2 and t.shape[0] == t.shape[1] and t.is_floating_point() for t in given)
    if len(sizes) != 1 or not is_wide or is_square or not all(map(is_readable, given)):
        return 0
    bytes_ = sum(map(size_of, (*call.module.parameters(), *given)))
    size = sizes.pop()
    return size if size >= FEWEST and bytes_ <= MOST_BYTES else 0


def _look(halves: list[_Batch], name: str) -> SampleFacts | None:
    """Both halves are kept in turn: a recurrent layer reads what came before, not what comes."""
    batch = halves[0]
    plain = trace(batch.model, batch.run)
    if _change(plain.output, batch.run(), batch) != 0:
        return None  # it is not the same twice: nothing can be told
    changes = [_change(plain.output, half.run(half.with_others), half) for half in halves]
    change = max(changes)
    batch = halves[changes.index(change)]
    order = _order(batch, plain.output) if any(map(is_attention, batch.model.modules())) else None
    if not change > LEAK or _may_be_time(batch, plain.output):
        return SampleFacts(
            name, batch.size, order=order[0] if order else None, table=order[1] if order else ""
        )
    other = trace(batch.model, lambda: batch.run(batch.with_others))
    at = first_difference(plain, other, lambda one, two: _differ(one, two, batch)) or ""
    begun = next((each for each in plain.calls if each.path == at), None)
    dims = max((t.ndim for t in begun.inputs if t.is_floating_point()), default=0) if begun else 3
    part = dict(batch.model.named_modules()).get(at)
    reads = part is not None and (is_attention(part) or isinstance(part, _READERS))
    with torch.enable_grad():
        sizes = softmax_sizes(batch.run())
    has_softmax = batch.size in sizes or (reads and not isinstance(part, nn.RNNBase))
    return SampleFacts(
        name, batch.size, change=change, at=at, has_softmax=has_softmax and dims > 2, dims=dims
    )


def _may_be_time(batch: _Batch, output: Any) -> bool:
    """May the first dimension be the time? The outputs then have both dimensions of the inputs, and no label
    tells that a text is a row.
    """
    given = [t for t in tensors_of((batch.call.args, batch.call.kwargs)) if t.ndim >= 2]
    places = {int(t.shape[1]) for t in given if t.ndim >= 3 or not t.is_floating_point()}
    made = [t for t in tensors_of(output) if t.is_floating_point() and t.ndim]
    if any(len(t) in places - {batch.size} for t in made):
        return True
    if not any(t.ndim >= 2 and len(t) == batch.size and t.shape[1] in places for t in made):
        return False
    tokens = [t for t in given if t.ndim == 2 and not t.is_floating_point()]
    return all(shift_of(labels, tokens, ignored) not in (1, 2, -1) for labels, ignored in batch.call.labels)


def _change(one: Any, other: Any, batch: _Batch) -> float:
    """How much the outputs of the samples that are kept have changed, as a share of their spread."""
    largest = 0.0
    for mine, theirs in zip(tensors_of(one), tensors_of(other), strict=False):
        if mine.shape != theirs.shape or not mine.is_floating_point() or mine.ndim < 1:
            continue
        is_square = mine.ndim >= 2 and mine.shape[0] == mine.shape[1]  # similarities of all with all
        if len(mine) != batch.size or is_square:
            continue
        before, after = mine[batch.kept].double(), theirs[batch.kept].double()
        if not bool(torch.isfinite(before).all()):
            continue
        spread = max(float(mine.double().std()), 1e-3 * float(before.abs().max()), 1e-12)
        gap = float((before - after).abs().max()) / spread
        largest = max(largest, math.inf if math.isnan(gap) else gap)
    return largest


def _differ(one: Tensor, other: Tensor, batch: _Batch) -> bool:
    """Do the parts of the samples that are kept differ? They may lie in the first or the second dimension."""
    if one.shape != other.shape or not one.is_floating_point() or one.ndim < 1:
        return False
    if len(one) == batch.size:
        mine, theirs = one[batch.kept], other[batch.kept]
    elif one.ndim >= 2 and one.shape[1] == batch.size:
        mine, theirs = one[:, batch.kept], other[:, batch.kept]
    elif len(one) % batch.size == 0:
        each = len(one) // batch.size
        rows = slice(each * batch.kept.start, each * batch.kept.stop)
        mine, theirs = one[rows], other[rows]
    else:
        return False
    gap = (mine.double() - theirs.double()).abs().nan_to_num(nan=math.inf)
    return bool(gap.max() > LEAK * (mine.double().std() + 1e-12))


def _order(batch: _Batch, output: Any) -> tuple[float, str] | None:
    """How much another order of the places changes the outputs, and the layer whose places were turned round.

    It is the first one that makes places of data, as a patch embedding. Outputs with places are not asked.
    """
    made = [t for t in tensors_of(output) if t.is_floating_point() and t.ndim]
    if not made or any(t.ndim > 2 for t in made):
        return None
    layers = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    path, layer = next(
        ((path, part) for path, part in batch.model.named_modules() if isinstance(part, layers)), ("", None)
    )
    turned: list[bool] = []

    def turn(module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor:
        is_fed = bool(args) and is_tensor(args[0]) and args[0].is_floating_point()
        is_linear = isinstance(module, nn.Linear)
        places = (output.shape[1] if is_linear else math.prod(output.shape[2:])) if output.ndim >= 3 else 0
        if turned or not is_fed or places < PLACES:
            return output
        turned.append(True)
        if is_linear:
            return output.flip(1)
        return output.flatten(2).flip(2).reshape(output.shape)

    if layer is None:
        return None
    with editing_calls({layer: (None, turn)}):
        other = batch.run()
    return (_change(output, other, batch), path) if turned else None
