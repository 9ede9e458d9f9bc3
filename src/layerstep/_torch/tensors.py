"""What counts as a tensor, and what torch keeps in private attributes of one. Seen on torch 2.13.0."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = [
    "Jagged",
    "as_numpy",
    "attempt",
    "base_of",
    "dim",
    "indices_of_sparse",
    "is_tensor",
    "is_torch",
    "is_view",
    "is_whole",
    "is_zero_tensor",
    "jagged",
    "local_shard",
    "memory_of",
    "raw_bytes",
    "size_of",
    "values_of_sparse",
    "version_of",
]


def is_tensor(value: object) -> TypeGuard[Tensor]:
    """Is this a tensor by its type, and not only by what its `__class__` says?

    `isinstance` believes `weakref.proxy(tensor)` and `Mock(spec=Tensor)`, and so does torch's own check of
    arguments: a C function that is given one of them reads memory that is not a tensor's.
    """
    return issubclass(type(value), Tensor)


def as_numpy(tensor: Tensor) -> npt.NDArray[Any]:
    """The memory of a plain CPU tensor as an array, to be read and released.

    Not `tensor.numpy()`: after it torch refuses to resize the storage for good, which FSDP and `resize_` do.
    An array by DLPack only keeps the memory alive. Fallback: a copy, for the dtypes that DLPack lacks.
    """
    try:
        return np.from_dlpack(tensor)
    except (AttributeError, BufferError, RuntimeError, TypeError):
        return tensor.clone().numpy()


_WINDOW = ctypes.c_char * (1 << 30)
_NUMPY_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
}
_keys_of: Any = getattr(torch._C, "_dispatch_keys", None)
_is_cow: Any = getattr(torch._C, "_is_cow_tensor", None)
_plain_keys: set[int] = set()
with contextlib.suppress(AttributeError, TypeError):
    _plain_keys.add(_keys_of(Tensor()).raw_repr())
    with torch.inference_mode():
        _plain_keys.add(_keys_of(Tensor()).raw_repr())


def is_whole(tensor: Tensor) -> bool:
    """Is this a dense CPU tensor whose values lie in their order, in memory that is all there?

    Its dispatch keys, one number, tell a plain one from those that are sparse, quantized, nested, negated, of
    a transform of torch.func, and so on. No operation runs, so that no mode sees it. Fallback: no.
    """
    if type(tensor) is not Tensor or _keys_of is None or _keys_of(tensor).raw_repr() not in _plain_keys:
        return False
    if not tensor.is_contiguous():
        return False
    needed = (tensor.storage_offset() + tensor.numel()) * tensor.itemsize
    return tensor.untyped_storage().nbytes() >= needed


def memory_of(tensor: Tensor) -> tuple[npt.NDArray[Any], int] | None:
    """The memory of a dense CPU tensor of floats as a flat array, and how often it was written.

    The array may be read while the tensor is held. None of any other tensor: its dispatch keys, one number,
    tell a plain one, as in `is_whole`. Fallback: None.
    """
    kind = _NUMPY_DTYPES.get(tensor.dtype)
    if kind is None or _is_cow is None or _keys_of is None or _keys_of(tensor).raw_repr() not in _plain_keys:
        return None
    if _is_cow(tensor) or not tensor.is_contiguous():
        return None
    count, at = tensor.numel(), tensor.data_ptr()
    if not at or tensor.untyped_storage().nbytes() < (tensor.storage_offset() + count) * kind.itemsize:
        return None
    try:
        version = tensor._version
    except RuntimeError:  # an inference tensor has none
        version = -1
    window: Any = _WINDOW.from_address(at)
    return np.frombuffer(window, kind, count), version


def raw_bytes(tensor: Tensor) -> Tensor:
    """The bytes of its values in their order, on the CPU; without a copy where they lie there like that.

    One element is contiguous whatever its stride says, but torch views bytes only where the stride is 1.
    """
    plain = tensor.detach().cpu().contiguous()
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)


def attempt(read: Callable[[], Any], default: Any) -> Any:
    try:
        with torch._C.DisableTorchFunction():
            return read()
    except Exception:
        return default


def is_torch(tensor: Tensor, name: str) -> bool:
    """By name: importing the class only to ask costs up to a second (DTensor)."""
    return any(c.__name__ == name and c.__module__.startswith("torch.") for c in type(tensor).__mro__)


def dim(size: Any) -> int:
    if type(size) is int:
        return size
    known = size.node.maybe_as_int()  # int() would leave a guard in a graph that is being traced
    return -1 if known is None else int(known)


def size_of(tensor: Tensor) -> int:
    """The bytes that its shape asks for; 0 for the kinds that have no such number (sparse, nested, lazy)."""
    return int(attempt(lambda: tensor.nbytes, 0))


def version_of(tensor: Tensor) -> int:
    """How often a tensor was written in place; -1 where torch does not count that."""
    try:
        return int(tensor._version)
    except Exception:  # inference tensors, and values in a transform of torch.func
        return -1


def base_of(tensor: Tensor) -> Tensor | None:
    """The tensor that this one is a view of, as autograd knows it."""
    return tensor._base


def is_view(tensor: Tensor) -> bool:
    """Does autograd treat the tensor as a view of another?"""
    return bool(tensor._is_view())


def is_zero_tensor(tensor: Tensor) -> bool:
    """Is this one of autograd's tensors of zeros, which claim a storage that is not there?"""
    return bool(tensor._is_zerotensor())


def local_shard(tensor: Any) -> Tensor:
    """The part of a DTensor that this rank holds. `to_local()` would record it for the backward pass."""
    shard: Tensor = tensor._local_tensor
    return shard


def values_of_sparse(tensor: Tensor) -> Tensor:
    """The stored values of a COO tensor. `values()` refuses one that is not coalesced."""
    return tensor._values()


def indices_of_sparse(tensor: Tensor) -> Tensor:
    """The stored indices of a COO tensor. `indices()` refuses one that is not coalesced."""
    return tensor._indices()


class Jagged(NamedTuple):
    """The parts of a nested tensor with the layout `torch.jagged`."""

    values: Tensor
    offsets: Tensor
    lengths: Tensor | None
    ragged: int
    """The dimension of the nested tensor whose size differs between its parts."""


def jagged(tensor: Any) -> Jagged:
    """Read the parts by name: the subclass itself has no memory."""
    return Jagged(tensor._values, tensor._offsets, tensor._lengths, int(tensor._ragged_idx))
