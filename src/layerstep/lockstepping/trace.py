"""What one forward did: every call of a module, in order, with what went in and what came out."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from layerstep._torch import is_transformed
from layerstep._torch.tensors import is_tensor, version_of
from layerstep.tensors.clones import clone_of
from layerstep.tensors.shapes import tensors_in

__all__ = ["SAMPLE", "Call", "Keeper", "Kept", "Trace", "sample_of"]

BUDGET = 1 << 30
"""Bytes of values kept of one run. What comes after is kept as a sample."""
SAMPLE = 1 << 16
MOST_VALUES = 8
"""Tensors kept of the inputs, and of the outputs, of one call."""


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """A copy of one tensor, or of a sample of it."""

    name: str
    """Its place: `[0]`, `.logits`, `['mask']`."""
    values: Tensor
    shape: tuple[int, ...]
    is_sample: bool = False

    @property
    def numel(self) -> int:
        return torch.Size(self.shape).numel()

    @property
    def is_float(self) -> bool:
        return self.values.is_floating_point() or self.values.is_complex()


@dataclass(slots=True, eq=False)
class Call:
    """One call of one module."""

    path: str
    number: int
    """The how-manieth call of this module: a path alone is no key, because a module can be shared."""
    kind: str
    parent: Call | None
    entered: int
    """Its place in the order of all entries and exits."""
    left: int = -1
    """-1: it did not return."""
    inputs: list[Kept] = field(default_factory=list)
    outputs: list[Kept] = field(default_factory=list)
    parts: list[Call] = field(default_factory=list)
    """The calls in it."""
    weights: dict[str, Tensor] = field(default_factory=dict)
    """Its own parameters; if no part of it was called, also those of its parts."""
    buffers: dict[str, Tensor] = field(default_factory=dict)
    """Its own floats that are not trained, such as running means."""
    written: dict[str, Tensor] = field(default_factory=dict)
    """Those of them that the call changed, as they are after it."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Its attributes that are numbers or words: `eps`, `padding`, `training`."""
    module: nn.Module | None = None

    @property
    def is_leaf(self) -> bool:
        return not self.parts

    @property
    def name(self) -> str:
        """The path; from the second call on with its number."""
        path = self.path or "the model"
        return path if self.number == 1 else f"{path} (call {self.number})"

    def ancestors(self) -> Iterator[Call]:
        """The calls around it, the innermost first."""
        call = self.parent
        while call is not None:
            yield call
            call = call.parent

    def within(self) -> Iterator[Call]:
        """Itself and all calls in it."""
        yield self
        for part in self.parts:
            yield from part.within()


@dataclass(slots=True, eq=False)
class Trace:
    """The calls of one run, in the order in which they began. The first is the outermost."""

    title: str
    calls: list[Call] = field(default_factory=list)
    raised: str = ""
    """The exception that ended the run, in one line."""
    drew: bool = False
    """Did it draw random numbers?"""
    notes: list[str] = field(default_factory=list)
    state: Mapping[str, Tensor] = field(default_factory=dict)
    """All parameters and buffers, by name."""

    @property
    def has_models(self) -> bool:
        return bool(self.calls) and self.calls[0].module is not None


class Keeper:
    """Copies values; a tensor that goes from one module to the next is copied once."""

    def __init__(self, budget: int = BUDGET) -> None:
        self._left = budget
        self._known: dict[int, tuple[weakref.ref[Tensor], int, Tensor]] = {}

    def keep(self, value: Any) -> list[Kept]:
        """Copies of the tensors in a value that have elements."""
        found = [self._kept(name, each) for name, each in tensors_in(value, most=MOST_VALUES)]
        return [each for each in found if each is not None]

    def _kept(self, name: str, tensor: Tensor) -> Kept | None:
        if not is_tensor(tensor) or tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
            return None
        if is_transformed(tensor):  # a value of vmap has no bits of its own
            return None
        known, version = self._known.get(id(tensor)), version_of(tensor)
        if known is not None and known[0]() is tensor and known[1] == version >= 0:
            return Kept(name, known[2], tuple(tensor.shape), known[2].shape != tensor.shape)
        size = tensor.numel() * tensor.element_size()
        try:
            copy = clone_of(tensor) if size <= self._left else sample_of(tensor).clone()
        except (RuntimeError, ValueError, NotImplementedError):  # freed, or of a kind that has no copy
            return None
        self._left -= copy.numel() * copy.element_size()
        self._known[id(tensor)] = (weakref.ref(tensor), version, copy)
        return Kept(name, copy, tuple(tensor.shape), copy.shape != tensor.shape)


def sample_of(tensor: Tensor) -> Tensor:
    """At most `SAMPLE` elements, evenly spread."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, -(-flat.numel() // SAMPLE))]
