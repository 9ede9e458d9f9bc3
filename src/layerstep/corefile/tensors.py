"""Tensors in a core file: the bytes of their storages, and how to rebuild each tensor from them.

A tensor is an entry (dtype, shape, strides, where its bytes are) over segments of raw memory. So tensors that
share memory share it in the file, an expanded tensor takes no more than it did, and every dtype works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from layerstep._torch import (
    below_everything,
    functorch_inner,
    is_functional,
    is_lazy_clone,
    is_vmapped,
)
from layerstep._torch.tensors import (
    as_numpy,
    indices_of_sparse,
    is_zero_tensor,
    jagged,
    local_shard,
    values_of_sparse,
)
from layerstep.errors import first_line
from layerstep.tensors.clones import is_freed

__all__ = ["LEFT_OUT", "Segment", "TensorTable"]

LEFT_OUT = "left out of the file"

Entry = dict[str, Any]


@dataclass(slots=True)
class Segment:
    """A piece of one storage, as it goes into the file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    storage: torch.UntypedStorage
    start: int
    nbytes: int

    def read(self) -> memoryview:
        """The bytes on the CPU. This is the run's own memory, if it is on the CPU."""
        with below_everything():
            raw = torch.empty(0, dtype=torch.uint8, device=self.storage.device)
            raw.set_(self.storage, self.start, (self.nbytes,), (1,))
            return as_numpy(raw.cpu()).data


@dataclass(slots=True)
class _Memory:
    """One storage, and the spans of it that tensors of the file need: (start, end, index of the entry)."""

    storage: torch.UntypedStorage
    spans: list[tuple[int, int, int]] = field(default_factory=list)

    def merged(self) -> Iterator[tuple[int, int, list[int]]]:
        """The spans with the entries in each; overlapping spans are joined."""
        start = end = 0
        entries: list[int] = []
        for low, high, index in sorted(self.spans):
            if entries and low < end:
                end = max(end, high)
                entries.append(index)
                continue
            if entries:
                yield start, end, entries
            start, end, entries = low, high, [index]
        if entries:
            yield start, end, entries


class TensorTable:
    """Collects tensors by reference. Copies and reads nothing before the segments are written."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._names: list[str] = []
        self._held: list[Tensor] = []  # an id is unique only while its object lives
        self._index: dict[int, int] = {}
        self._memory: dict[tuple[str, int], _Memory] = {}

    @property
    def nbytes(self) -> int:
        """How many bytes the segments take."""
        spans = (span for memory in self._memory.values() for span in memory.merged())
        return sum(end - start for start, end, _ in spans)

    @property
    def unread(self) -> list[str]:
        """What could not be read, and why: a line for each reason."""
        found: dict[str, list[str]] = {}
        for name, entry in zip(self._names, self.entries, strict=True):
            if entry.get("kind") == "absent" and entry["why"] != LEFT_OUT:
                found.setdefault(entry["why"], []).append(name)
        return [f"{_some(names)}, which cannot be read here ({why})" for why, names in found.items()]

    def mark(self) -> int:
        """A state for `take_back`."""
        return len(self.entries)

    def take_back(self, mark: int) -> None:
        """Forget what was added since the mark."""
        del self.entries[mark:], self._names[mark:]
        self._index = {key: index for key, index in self._index.items() if index < mark}
        for memory in self._memory.values():
            memory.spans = [span for span in memory.spans if span[2] < mark]

    def add(self, tensor: Tensor, name: str, *, keep: bool = True) -> int:
        """The number of a tensor in the file. Without `keep`: its shape only."""
        if id(tensor) in self._index:
            return self._index[id(tensor)]
        index = len(self.entries)
        self.entries.append({})
        self._names.append(name)
        self._held.append(tensor)
        self._index[id(tensor)] = index
        with below_everything():
            try:
                entry = self._describe(tensor) | self._pack(tensor, index, name, keep=keep)
            except Exception as error:  # an unknown kind of tensor: its type is still known
                reason = first_line(error)[:100]
                entry = {"kind": "absent", "why": f"{type(tensor).__name__}: {reason}"}
                entry |= {"dtype": "float32", "shape": []}
        self.entries[index] = entry
        return index

    @staticmethod
    def _describe(tensor: Tensor) -> Entry:
        entry: Entry = {"dtype": str(tensor.dtype).removeprefix("torch."), "device": str(tensor.device)}
        if not is_lazy(tensor) and not tensor.is_nested:
            entry["shape"] = [int(size) for size in tensor.shape]
        flags = {
            "requires_grad": tensor.requires_grad,
            "made": tensor.grad_fn is not None,
            "parameter": isinstance(tensor, nn.Parameter),
            "inference": tensor.is_inference(),
        }
        return entry | {name: True for name, holds in flags.items() if holds}

    def _pack(self, tensor: Tensor, index: int, name: str, *, keep: bool) -> Entry:
        if is_lazy(tensor):
            return {"kind": "lazy", "shape": []}
        why = _unreadable(tensor) if keep else LEFT_OUT
        if why:
            shape = [] if tensor.is_nested else [int(size) for size in tensor.shape]
            return {"kind": "absent", "why": why, "shape": shape}
        if tensor.is_meta:
            return {"kind": "meta", "stride": list(tensor.stride())}
        tensor = functorch_inner(tensor)
        packer = next((pack for test, pack in _KINDS if test(tensor)), None)
        if packer is None:
            return self._pack_dense(_plain(tensor), index)
        entry, parts = packer(tensor)
        numbers = [self.add(part.detach(), f"{name}.{label}") for label, part in parts.items()]
        return entry | {"parts": dict(zip(parts, numbers, strict=True))}

    def _pack_dense(self, tensor: Tensor, index: int) -> Entry:
        self._held.append(tensor)
        item = tensor.element_size()
        start = int(tensor.storage_offset()) * item
        if tensor.numel():
            steps = zip(tensor.shape, tensor.stride(), strict=True)
            last = sum((int(size) - 1) * int(step) for size, step in steps)
            storage = tensor.untyped_storage()
            key = (str(tensor.device), storage.data_ptr())
            memory = self._memory.setdefault(key, _Memory(storage))
            memory.spans.append((start, start + (last + 1) * item, index))
        return {
            "kind": "dense",
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),  # of a DTensor, the local shard's
            "stride": list(tensor.stride()),
            "at": start,
        }

    def segments(self) -> list[Segment]:
        """What to write. Notes in each entry where it is; call this once, at the end."""
        found: list[Segment] = []
        taken: set[str] = set()
        for memory in self._memory.values():
            for start, end, entries in memory.merged():
                found.append(self._segment(memory.storage, start, end, entries=entries, taken=taken))
        return sorted(found, key=lambda segment: -segment.dtype.itemsize)  # so that each is aligned

    def _segment(
        self, storage: torch.UntypedStorage, start: int, end: int, *, entries: list[int], taken: set[str]
    ) -> Segment:
        first = self.entries[entries[0]]
        dtype, shape = getattr(torch, first["dtype"]), tuple(first["shape"])
        alone = len(entries) == 1 and first["stride"] == _strides(shape)
        if not alone:
            start -= start % 16  # a view with wider elements must begin at a whole one
            dtype, shape = torch.uint8, (end - start,)
        name = base = self._names[entries[0]]
        count = 2
        while name in taken:
            name, count = f"{base}~{count}", count + 1
        taken.add(name)
        for index in entries:
            self.entries[index]["segment"] = name
            self.entries[index]["at"] -= start
        return Segment(name, dtype, shape, storage, start, end - start)


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more tensors"


def _strides(shape: tuple[int, ...]) -> list[int]:
    """The strides of a contiguous tensor, also in dimensions of size 1, which torch leaves open."""
    strides, step = [0] * len(shape), 1
    for place in reversed(range(len(shape))):
        strides[place], step = step, step * shape[place]
    return strides


def _unreadable(tensor: Tensor) -> str:
    """Why the values of a tensor cannot be read, or ""."""
    if is_vmapped(tensor):
        return "not readable inside vmap"
    if is_functional(tensor) or any(base.__name__ == "FakeTensor" for base in type(tensor).__mro__):
        return "a tensor without values"
    if is_freed(tensor):
        return "its storage is freed"
    return "its values are kept by a tensor subclass" if _has_no_memory(tensor) else ""


def _has_no_memory(tensor: Tensor) -> bool:
    """Is it a wrapper subclass? Its storage has the right size but no memory: reading it crashes."""
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_nested or _is_dtensor(tensor):
        return False
    if not tensor.numel() or is_lazy_clone(tensor) or is_zero_tensor(tensor):
        return False
    try:
        return not tensor.untyped_storage().data_ptr()
    except NotImplementedError:  # a device without storages copies all the same
        return False
    except RuntimeError:
        return True


def _is_dtensor(tensor: Tensor) -> bool:
    """By name: importing the class only to ask costs a second."""
    return any(base.__name__ == "DTensor" for base in type(tensor).__mro__)


def _plain(tensor: Tensor) -> Tensor:
    """The values in ordinary memory, strides as they are."""
    if _is_dtensor(tensor):
        tensor = local_shard(tensor)
    tensor = tensor.detach().as_subclass(Tensor)
    if tensor.is_mkldnn:
        return tensor.to_dense()
    if tensor.is_conj() or tensor.is_neg():
        return tensor.resolve_conj().resolve_neg()
    if is_lazy_clone(tensor):  # asking for its address would copy it in the run
        return tensor.clone()
    return torch.zeros(tensor.shape, dtype=tensor.dtype) if is_zero_tensor(tensor) else tensor


Packer = Callable[[Tensor], tuple[Entry, dict[str, Tensor]]]


def _pack_nested(tensor: Tensor) -> tuple[Entry, dict[str, Tensor]]:
    if tensor.layout is torch.strided:
        parts = {str(number): part for number, part in enumerate(tensor.detach().unbind())}
        return {"kind": "nested", "shape": []}, parts
    inner = jagged(tensor)
    parts = {"values": inner.values, "offsets": inner.offsets}
    parts |= {"lengths": inner.lengths} if inner.lengths is not None else {}
    return {"kind": "jagged", "shape": [], "dim": inner.ragged}, parts


def _pack_sparse(tensor: Tensor) -> tuple[Entry, dict[str, Tensor]]:
    tensor = tensor.detach()
    if tensor.layout is torch.sparse_coo:
        entry: Entry = {"kind": "sparse", "layout": "sparse_coo", "coalesced": tensor.is_coalesced()}
        return entry, {"indices": indices_of_sparse(tensor), "values": values_of_sparse(tensor)}
    by_row = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    first, second = (
        (tensor.crow_indices, tensor.col_indices)
        if by_row
        else (
            tensor.ccol_indices,
            tensor.row_indices,
        )
    )
    entry = {"kind": "sparse", "layout": str(tensor.layout).removeprefix("torch.")}
    return entry, {"compressed": first(), "plain": second(), "values": tensor.values()}


def _pack_quantized(tensor: Tensor) -> tuple[Entry, dict[str, Tensor]]:
    parts = {"integers": tensor.int_repr()}
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return {"kind": "quantized", "scale": tensor.q_scale(), "zero": tensor.q_zero_point()}, parts
    parts |= {"scales": tensor.q_per_channel_scales(), "zeros": tensor.q_per_channel_zero_points()}
    return {"kind": "quantized", "axis": tensor.q_per_channel_axis()}, parts


_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)

_KINDS: tuple[tuple[Callable[[Tensor], bool], Packer], ...] = (
    (lambda tensor: tensor.is_nested, _pack_nested),
    (lambda tensor: tensor.is_quantized, _pack_quantized),
    (lambda tensor: tensor.layout in _SPARSE, _pack_sparse),
)
