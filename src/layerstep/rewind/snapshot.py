"""What a forward may write, as it was when it began: inputs, caches, buffers, attributes, random streams.

Objects are kept by reference with what they held. Of tensors a copy is taken, because one cannot know before
which of them the forward writes. Of parameters it is taken only if the forward may write them (`weights.py`).
What the user has changed in them stays.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from layerstep._torch import is_transformed, set_version
from layerstep._torch.tensors import is_view, is_whole, raw_bytes, size_of, version_of
from layerstep.rerun.attributes import (
    DEPTH,
    HOOK_TABLES,
    Attributes,
    is_machinery,
    leaf_kinds,
    own_attributes,
    put_back,
)
from layerstep.rerun.whole_call import generators_of
from layerstep.rewind.weights import WeightWriters
from layerstep.side_effects.random_streams import Generators, RandomState, is_generator
from layerstep.tensors.clones import clone_of, write_back

__all__ = ["COPY_BYTES", "Snapshot"]

COPY_BYTES = 256 << 20
"""Copies of all tensors together. What is larger is put back only if the forward has not written it."""


_TABLES = ("_parameters", "_buffers", "_modules")
_PASSED = HOOK_TABLES.union(_TABLES)
"""Attributes of every module that are not gone through as the others are."""


class _Noted(NamedTuple):
    tensor: Tensor
    content: Tensor | None
    version: int
    grad_fn: Any
    requires_grad: bool


class Snapshot:
    """The state at the beginning of a forward."""

    def __init__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], writers: WeightWriters
    ) -> None:
        self.generators = generators_of(module)
        self._state = _State(self.generators, module, args, kwargs)
        self.weights = writers.keep(module, room=COPY_BYTES - self._state.copied)
        self._streams = RandomState()
        self.trouble = "it makes the weights of its lazy layers" if self._state.has_lazy else ""
        """Why the forward cannot begin again, whatever it does."""

    @property
    def copied(self) -> int:
        """The bytes that were copied."""
        return self._state.copied

    def why_not(self) -> str:
        """What the forward has written that cannot be put back; empty if there is nothing."""
        return self.trouble or self._state.lost() or (self.weights.lost() if self.weights is not None else "")

    def restore(self) -> None:
        """Put everything back."""
        self._state.restore()
        if self.weights is not None:
            self.weights.restore()
        self.turn_streams_back()

    def turn_streams_back(self) -> None:
        """Put the random streams back alone."""
        self._streams.restore()
        self.generators.rewind()


class _State(Attributes):
    """Objects and tensors that are reached from a module and from the arguments of its call."""

    def __init__(self, generators: Generators, module: nn.Module, *values: Any) -> None:
        self._generators = generators
        self._noted: list[_Noted] = []
        self._names: list[dict[str, Any]] = []
        self._names_before: list[dict[str, Any]] = []
        self._tables: list[dict[str, Any]] = []
        self._tables_before: list[dict[str, Any]] = []
        """Lists side by side: a pair for each layer would be one more object to make and to free."""
        self.copied = 0
        self.has_lazy = False
        super().__init__(module, *values)

    def _add_layers(self, names: list[dict[str, Any]]) -> None:
        """Layers of torch hold no state but buffers: what they hold else is only noted, not gone through.

        Their weights and parts may be exchanged: after `functional_call` on a model that has a layer twice,
        torch leaves others there.
        """
        before = self._note_names(names)
        for held in ("_parameters", "_modules"):
            tables = [table for each in before if (table := each[held])]
            self._tables += tables
            self._tables_before += [table.copy() for table in tables]
        for buffers in [table for each in before if (table := each["_buffers"])]:
            self._add(buffers, 1)
        self.has_lazy |= self._parts.has_lazy

    def _add_modules(self, modules: list[nn.Module]) -> None:
        for before in self._note_names([module.__dict__ for module in modules]):
            for held in _TABLES:
                table = before.get(held)
                if type(table) is not dict:  # of a scripted module, say
                    self._add(table, DEPTH)
                    continue
                self._containers.append((table, table.copy()))
                if table and held != "_modules":
                    self._add_all(table.values(), DEPTH - 1)
            self._add_values(before, DEPTH, passing=_PASSED)

    def _add_attributes(self, names: dict[str, Any], depth: int) -> None:
        self._add_values(self._note_names([names])[0], depth)

    def _note_names(self, names: list[dict[str, Any]]) -> list[dict[str, Any]]:
        before = [each.copy() for each in names]  # five times as quick as `dict(…)`
        self._names += names
        self._names_before += before
        return before

    def _add_values(
        self, before: dict[str, Any], depth: int, *, passing: frozenset[str] = frozenset()
    ) -> None:
        for name, value in before.items():
            if type(value) in leaf_kinds or name in passing:
                continue  # most of them; the rest is asked more slowly
            if not is_machinery(name, value):
                self._add(value, depth)

    def restore(self) -> list[str]:
        for names, before in zip(self._names, self._names_before, strict=True):
            if names.keys() != before.keys() or any(names[name] is not before[name] for name in before):
                put_back(names, own_attributes(before))
        self._containers += zip(self._tables, self._tables_before, strict=True)
        self._tables, self._tables_before = [], []
        return super().restore()

    def _add_object(self, value: Any, depth: int) -> None:
        if is_generator(value):
            self._generators.add(value)
        super()._add_object(value, depth)

    def _add_tensor(self, tensor: Tensor) -> None:
        if is_whole(tensor):  # as nearly all buffers and inputs are; none of the questions below
            content = None
            if self.copied + tensor.nbytes <= COPY_BYTES:
                try:
                    content = tensor.clone()
                    self.copied += tensor.nbytes
                except Exception:  # four bits, which torch cannot copy; or no memory left
                    content = None
            self._note(tensor, content)
        elif isinstance(tensor, nn.Parameter):
            self.has_lazy |= is_lazy(tensor)  # of a class of its own until its first forward
        else:
            self._add_odd_tensor(tensor)

    def _add_odd_tensor(self, tensor: Tensor) -> None:
        content = None
        size = size_of(tensor)
        has_values = not (tensor.is_meta or is_transformed(tensor))
        if has_values and self.copied + size <= COPY_BYTES:
            with contextlib.suppress(Exception):  # freed, or of a kind that cannot be copied
                content = clone_of(tensor)
                self.copied += size
        self._note(tensor, content)

    def _note(self, tensor: Tensor, content: Tensor | None) -> None:
        needs_grad = tensor.requires_grad
        grad_fn = tensor.grad_fn if needs_grad else None
        self._noted.append(_Noted(tensor, content, version_of(tensor), grad_fn, needs_grad))

    def lost(self) -> str:
        """What was written and cannot be put back, in words."""
        for noted in self._noted:
            tensor = noted.tensor
            is_grown = tensor.requires_grad and not noted.requires_grad
            if (tensor.grad_fn is not noted.grad_fn and not is_grown) or (is_grown and is_view(tensor)):
                return "an input that has a gradient was written in place, which autograd has noted"
            if noted.content is None and noted.version != version_of(tensor):
                return f"a tensor of {size_of(tensor):,} bytes was written, and no copy was taken of it"
            if noted.content is not None and noted.content.shape != tensor.shape:
                return "a tensor has got another shape"
        return ""

    def _restore_tensors(self) -> None:
        for noted in self._noted:
            tensor, content = noted.tensor, noted.content
            if content is None or not _was_written(tensor, content, noted.version):
                continue
            if tensor.requires_grad and not noted.requires_grad:
                tensor.detach_()
            write_back(tensor, content)
            if noted.version >= 0:
                set_version(tensor, noted.version)


def _was_written(tensor: Tensor, content: Tensor, version: int) -> bool:
    """By its bits too: batch norm writes its statistics uncounted, as does whoever uses `.data`."""
    if version < 0 or version_of(tensor) != version:
        return True
    try:
        return not torch.equal(raw_bytes(tensor), raw_bytes(content))
    except Exception:  # a kind of tensor without bytes of its own: its count of writes has told
        return False
