"""One row of a batch, given to a copy of a model with some of its tokens changed or cut off."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from layerstep._torch.tensors import is_tensor
from layerstep.doctor.traced import Trace, softmax_sizes, trace
from layerstep.doctor.training_calls import TrainingCall
from layerstep.doctor.trial import changed
from layerstep.hooks.temporary import editing_calls, watching_copy
from layerstep.tensors.containers import tensors_of

__all__ = ["Output", "Rows", "change_of", "is_attention", "is_square_mask"]


def is_attention(module: nn.Module) -> bool:
    """Is this an attention, by its class or by the name of its class?"""
    return isinstance(module, nn.MultiheadAttention) or "attention" in type(module).__name__.lower()


@dataclass(frozen=True, slots=True)
class Output:
    """What a model makes of one row."""

    whole: Tensor | None
    """Its output with a place for each token, [1, tokens, …], or what it makes of the whole row."""
    last: Tensor | None
    """The last value in it that has a place for each token."""
    has_places: bool

    @property
    def is_finite(self) -> bool:
        return self.whole is not None and bool(torch.isfinite(self.whole).all())

    def ends(self, real: slice) -> Any:
        """The places of the first and of the last real token."""
        return torch.tensor([real.start, real.stop - 1])


def change_of(one: Output, other: Output, places: Any, *, inside: bool = False) -> float:
    """How much an output has changed at some places, as a share of its spread.

    An output without places is compared whole; `inside` compares the last value that has places instead.
    """
    mine, theirs = (one.last, other.last) if inside else (one.whole, other.whole)
    if mine is None or theirs is None:
        return 0.0
    if one.has_places or inside:
        mine, theirs = mine[:, places], theirs[:, places]
    if mine.shape != theirs.shape:
        return math.inf
    gap = float((mine.double() - theirs.double()).abs().max()) if mine.numel() else 0.0
    spread = float(mine.double().std()) if mine.numel() > 1 else 0.0
    size = max(spread, 1e-3 * float(mine.double().abs().max()) if mine.numel() else 0.0, 1e-12)
    return math.inf if math.isnan(gap) else gap / size


class Rows:
    """Gives single rows of the batch of a call to a copy of the model."""

    def __init__(
        self,
        call: TrainingCall,
        model: nn.Module,
        tokens: Tensor,
        others: Sequence[Tensor] = (),
        *,
        time_first: bool = False,
    ) -> None:
        self._call = call
        self._model = model
        self._tokens = tokens
        """A row for each text, also where the model is given the time in the first dimension."""
        self._others = others
        """Other arguments that hold tokens. They keep their length where that of the tokens is cut."""
        self._time_first = time_first

    def turned(self, made: Tensor, width: int) -> Tensor:
        """What a model has made of one row, with the row in the first dimension."""
        is_turned = self._time_first and made.ndim >= 2 and made.shape[:2] == (width, 1)
        return made.transpose(0, 1) if is_turned else made

    def other_tokens(self, row: int) -> Tensor | None:
        """Other tokens for the places of a row, all of them seen in the batch; None if there are too few."""
        ids = self._tokens[row : row + 1]
        seen = torch.unique(self._tokens)
        if len(seen) < 3:
            return None
        other: Tensor = seen[(torch.searchsorted(seen, ids) + 1) % len(seen)]
        return other

    def run(
        self,
        row: int,
        change: Callable[[Tensor], Tensor] | None = None,
        *,
        length: int | None = None,
        shaken: slice | None = None,
    ) -> Output:
        """The output for one row. `change` gives it other tokens; `length` cuts off what is behind; `shaken`
        places get another embedding, and keep their token, by which a model may know its padding.
        """
        last: list[Tensor] = []
        width = length or self._tokens.shape[1]

        def note(path: str, given: Any, output: Any) -> None:
            for made in (self.turned(each, width) for each in tensors_of(output, 2)):
                if made.is_floating_point() and made.ndim >= 3 and made.shape[:2] == (1, width):
                    last[:] = [made.detach()]

        with watching_copy(self._model, note), self.shaking(row, shaken):
            output = self._call_model(row, change, length)
        values = [self.turned(each, width) for each in tensors_of(output)]
        return _output(values, width, last[0] if last else None)

    def traced(
        self,
        row: int,
        change: Callable[[Tensor], Tensor] | None = None,
        *,
        length: int | None = None,
        shaken: slice | None = None,
    ) -> Trace:
        """The same call with what each module takes and makes."""
        with self.shaking(row, shaken):
            return trace(self._model, lambda: self._call_model(row, change, length))

    def softmax_sizes(self, row: int) -> set[int]:
        """Over how many values the softmaxes of the model run."""
        with torch.enable_grad():
            return softmax_sizes(self._call_model(row, None, None))

    def turned_mask(self, row: int, real: slice) -> str:
        """The path of an attention of torch whose mask ignores exactly the real tokens of a row; or nothing.

        Other tokens at real places may act on the output all the same: by way of the padding, which reads
        them.
        """
        marks = torch.zeros(1, self._tokens.shape[1], dtype=torch.bool)
        marks[:, real] = True
        found: list[str] = []

        def note(path: str, given: Any, output: Any) -> None:
            mask = given[1].get("key_padding_mask")
            if is_tensor(mask) and mask.shape == marks.shape:
                ignored = mask if mask.dtype is torch.bool else mask < 0
                found.extend([path] if torch.equal(ignored.cpu(), marks) else [])

        with watching_copy(self._model, note):
            self._call_model(row, None, None)
        return found[0] if found else ""

    @contextlib.contextmanager
    def shaking(self, row: int, places: slice | None) -> Iterator[None]:
        """Let the embeddings of the copy give something else at some places of a row."""
        ids = self._tokens[row : row + 1]

        def shake(module: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Tensor) -> Tensor:
            given = self.turned(args[0], ids.shape[1]) if args else None
            if places is None or given is None or not torch.equal(given, ids):
                return output
            ramp = torch.linspace(-1, 1, output.shape[-1], dtype=output.dtype, device=output.device)
            shaken = output.clone()
            self.turned(shaken, ids.shape[1])[:, places] += (
                output.std() + 1e-3
            ) * ramp  # a norm layer would take a constant away
            return shaken

        tables = [part for part in self._model.modules() if isinstance(part, nn.Embedding)]
        with editing_calls({table: (None, shake) for table in tables}):
            yield

    def _call_model(self, row: int, change: Callable[[Tensor], Tensor] | None, length: int | None) -> Any:
        batch, width = self._tokens.shape

        def one_row(tensor: Tensor) -> Tensor:
            is_turned = self._time_first and tensor.ndim >= 2 and tensor.shape[:2] == (width, batch)
            made = own_row(tensor.transpose(0, 1) if is_turned else tensor)
            return made.transpose(0, 1) if is_turned else made

        def own_row(tensor: Tensor) -> Tensor:
            is_tokens = tensor.shape == self._tokens.shape and torch.equal(tensor, self._tokens)
            is_other = not is_tokens and any(_is_equal(tensor, each) for each in self._others)
            if tensor.ndim and tensor.shape[0] == batch and not is_square_mask(tensor, width):
                tensor = tensor[row : row + 1]
            if is_tokens and change is not None:
                tensor = change(tensor)
            return tensor if length is None or is_other else _cut(tensor, width, length)

        def one_length(value: Any) -> Any:
            is_lengths = type(value) in (list, tuple) and len(value) == batch
            if is_lengths and all(type(each) is int for each in value):
                return type(value)([value[row]])
            return value

        args, kwargs = self._call.arguments()
        args = tuple(map(one_length, args))
        kwargs = {key: one_length(value) for key, value in kwargs.items()}
        return self._model(*changed(args, one_row), **changed(kwargs, one_row))


def _is_equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


def is_square_mask(tensor: Tensor, width: int) -> bool:
    """Is this a mask from token to token, and not one row for each text of a batch?"""
    if tensor.shape != (width, width) or tensor.dtype in (torch.int64, torch.int32):
        return False
    marks = tensor != tensor[-1, 0]
    return bool(torch.equal(marks, marks.triu()) or torch.equal(marks, marks.tril()))


def _cut(tensor: Tensor, width: int, length: int) -> Tensor:
    """A tensor with places for each token, cut to fewer of them. Features of floats are left alone."""
    if tensor.ndim == 2 and tensor.shape == (width, width):
        return tensor[:length, :length]
    if tensor.ndim >= 2 and not (tensor.is_floating_point() and tensor.ndim == 3):
        for dim in range(1, tensor.ndim):
            if tensor.shape[dim] == width:
                tensor = tensor.narrow(dim, 0, length)
    return tensor


def _output(output: Any, width: int, last: Tensor | None) -> Output:
    made = [t for t in tensors_of(output) if t.is_floating_point() and t.ndim]
    for tensor in made:
        if tensor.ndim >= 2 and tensor.shape[:2] == (1, width):
            return Output(tensor.detach(), last, True)
        if tensor.ndim == 2 and tensor.shape[0] == width:  # [batch · tokens, classes]
            return Output(tensor.detach().unsqueeze(0), last, True)
    return Output(made[0].detach() if made else None, last, False)
