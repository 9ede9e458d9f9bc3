"""Kinds of tensor: where the values of each are kept, and why some have none to show."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from layerstep._torch import (
    functorch_inner,
    is_functional,
    is_lazy_clone,
    is_transformed,
    is_vmapped,
    vmap_inner,
)
from layerstep._torch.tensors import (
    attempt,
    dim,
    indices_of_sparse,
    is_tensor,
    is_torch,
    is_zero_tensor,
    jagged,
    local_shard,
    values_of_sparse,
)

__all__ = [
    "Part",
    "StoredValues",
    "bytes_of",
    "dense_values",
    "inner_parts",
    "open_values",
    "readable",
]

Part = tuple[torch.Tensor, ...]  # (values,) or (integers, zero_point, scale), all of one shape

COPY_LIMIT = 1 << 24  # bytes: larger tensors that cannot be read in pieces are not copied


class StoredValues(NamedTuple):
    """The parts that hold the values, and how many zeros are not stored. Without parts the note says why."""

    parts: list[Part] | None
    note: str = ""
    implicit: int = 0
    layout: str = ""


def open_values(tensor: torch.Tensor) -> StoredValues:
    tensor = functorch_inner(tensor)
    layout, reader = next(((name, reader) for name, test, reader in _KINDS if test(tensor)), ("", _plain))
    if not layout and tensor.layout != torch.strided:
        layout, reader = str(tensor.layout).removeprefix("torch."), _sparse
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        reader = "a CUDA graph is being captured"  # which a copy to the host would break
    values = StoredValues(None, reader) if isinstance(reader, str) else reader(tensor)
    missing = next(filter(None, (_absent(part[0]) for part in values.parts or ())), "")
    if missing:
        return StoredValues(None, missing, layout=layout)
    if values.parts and values.parts[0][0].is_complex():
        values = values._replace(note=f"{values.note} of |z|".strip())
    return values._replace(layout=layout)


def dense_values(tensor: torch.Tensor) -> torch.Tensor | None:
    """The values of an ordinary tensor, to be read under `below_everything`; None for any other kind."""
    values = open_values(tensor)
    return values.parts[0][0] if values.parts is not None and not values.layout else None


def readable(tensor: torch.Tensor) -> tuple[list[torch.Tensor], str]:
    """The plain tensors that hold the values and can be read; none, and the reason, where they cannot.

    Ask this, under `below_everything`, before a kernel gets a tensor of the run past its subclass and
    transforms: a wrapper has a size and no memory, and reading it is a segmentation fault.
    """
    if type(tensor) in _PLAIN and _is_ordinary(tensor):
        missing = _absent(tensor)
        return ([], missing) if missing else ([tensor], "")
    values = attempt(lambda: open_values(tensor), None)
    if values is None:
        return [], f"a {type(tensor).__name__} of a kind that is not known"
    if values.parts is None:
        parts = inner_parts(tensor)
        return parts, "" if parts else values.note
    if values.layout == "quantized":  # finite scales make finite values
        return [part[2] for part in values.parts if len(part) == 3] or [each[0] for each in values.parts], ""
    return [part[0] for part in values.parts], ""


_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def _is_ordinary(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized or tensor.is_nested:
        return False
    return not (is_transformed(tensor) or is_functional(tensor) or is_zero_tensor(tensor))


def inner_parts(tensor: Any) -> list[torch.Tensor]:
    """The plain tensors inside a wrapper subclass, by its `__tensor_flatten__`."""
    if not hasattr(type(tensor), "__tensor_flatten__"):
        return []
    names, _ = attempt(tensor.__tensor_flatten__, ((), None))
    inner = [part for name in names if is_tensor(part := attempt(partial(getattr, tensor, name), None))]
    found = [readable(part) for part in inner if part is not tensor]
    return [] if any(why for _, why in found) else [part for parts, _ in found for part in parts]


def _absent(tensor: torch.Tensor) -> str:
    """Why there is no memory behind the shape, or "". Reading it would be a segmentation fault."""
    if tensor.numel() == 0 or is_lazy_clone(tensor):  # a lazy clone: asking would copy it
        return ""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    try:
        storage = tensor.untyped_storage()
        short = storage.nbytes() < (tensor.storage_offset() + last + 1) * tensor.element_size()
        return "its storage is freed" if short or not storage.data_ptr() else ""
    except NotImplementedError:  # a device without storages copies all the same
        return ""
    except RuntimeError:  # a wrapper subclass has a storage of the right size and no memory
        return "the values are kept elsewhere, by a tensor subclass"


def _plain(tensor: torch.Tensor) -> StoredValues:
    if is_zero_tensor(tensor):  # claims a storage that is not there
        tensor = torch.zeros((), dtype=torch.float32, device="cpu").expand(tensor.shape)
    return StoredValues([(tensor.detach().as_subclass(torch.Tensor),)])


def _vmapped(tensor: torch.Tensor) -> StoredValues:
    """All samples of the batch at once: below the transform they are one tensor."""
    values = open_values(vmap_inner(tensor))
    return values._replace(note=f"of all samples of the vmap {values.note}".strip())


def _local(tensor: Any) -> StoredValues:
    values = open_values(local_shard(tensor))
    return values._replace(note=f"local shard {values.note}".strip())


def _sparse(tensor: torch.Tensor) -> StoredValues:
    note, tensor = "stored values", tensor.detach()
    if tensor.is_sparse and not tensor.is_coalesced() and not _absent(values_of_sparse(tensor)):
        if bytes_of(tensor, "sparse_coo") > COPY_LIMIT:
            note = "stored values, duplicates not added up"
        else:
            tensor = tensor.coalesce()
    stored = values_of_sparse(tensor) if tensor.is_sparse else tensor.values()
    return StoredValues([(stored,)], note, max(0, tensor.numel() - stored.numel()))


def _nested(tensor: Any) -> StoredValues:
    if tensor.layout == torch.strided:
        return StoredValues([(part,) for part in tensor.detach().unbind()])
    parts = jagged(tensor)
    values = parts.values.detach()
    if parts.lengths is None:
        return StoredValues([(values,)])
    spans = zip(parts.offsets.tolist(), parts.lengths.tolist(), strict=False)
    return StoredValues([(values.narrow(parts.ragged - 1, at, n),) for at, n in spans])


def _quantized(tensor: torch.Tensor) -> StoredValues:
    """The integers in their own storage, and their scales: `dequantize` would copy all of it."""
    dtypes = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}
    if tensor.is_neg():  # lost its quantizer; asking for the scheme is a segmentation fault (torch 2.13)
        return StoredValues(None, "a negated view of a quantized tensor has no scale")
    if tensor.dtype not in dtypes:  # several values to the byte
        return _copied(tensor)
    if _absent(tensor):  # or else `set_` would grow the freed storage again
        return StoredValues(None, _absent(tensor))
    raw = torch.empty(0, dtype=dtypes[tensor.dtype], device=tensor.device)
    raw.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
    along = [1] * raw.dim()
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        affine = (tensor.q_zero_point(), tensor.q_scale())
        both = [torch.tensor(each, dtype=torch.float64, device="cpu") for each in affine]
    else:
        along[tensor.q_per_channel_axis()] = -1
        both = [tensor.q_per_channel_zero_points().cpu(), tensor.q_per_channel_scales().cpu()]
    return StoredValues([(raw, *(each.view(along).expand(raw.shape) for each in both))])


def _copied(tensor: torch.Tensor) -> StoredValues:
    if tensor.numel() * tensor.element_size() > COPY_LIMIT:
        return StoredValues(None, "too large to unpack only for a look")
    if tensor.is_quantized and not tensor.untyped_storage().nbytes():
        return StoredValues(None, "its storage is freed")
    return StoredValues(
        [(tensor.detach().dequantize() if tensor.is_quantized else tensor.detach().to_dense(),)]
    )


_KINDS: tuple[tuple[str, Callable[[Any], bool], Callable[[Any], StoredValues] | str], ...] = (
    ("lazy", lambda t: is_torch(t, "UninitializedTensorMixin"), "not initialized yet"),
    ("vmapped", is_vmapped, lambda t: _vmapped(t)),
    ("functional", is_functional, "values are not readable while functionalized"),
    ("fake", lambda t: is_torch(t, "FakeTensor"), "a fake tensor has no values"),
    ("dtensor", lambda t: is_torch(t, "DTensor"), _local),
    ("meta", lambda t: t.is_meta, "no values on the meta device"),
    ("nested", lambda t: t.is_nested, _nested),
    ("quantized", lambda t: t.is_quantized, _quantized),
    ("mkldnn", lambda t: t.is_mkldnn, _copied),
    ("sparse_coo", lambda t: t.is_sparse, _sparse),
)


def _sparse_parts(tensor: Any, layout: str) -> list[torch.Tensor]:
    if layout == "sparse_coo":
        return [values_of_sparse(tensor), indices_of_sparse(tensor)]
    if layout.endswith("r"):
        return [tensor.values(), tensor.crow_indices(), tensor.col_indices()]
    return [tensor.values(), tensor.ccol_indices(), tensor.row_indices()]


def bytes_of(tensor: Any, layout: str) -> int:
    """The bytes that the shape needs, or of the storage if that is smaller (expanded, freed)."""
    if layout == "dtensor":
        return bytes_of(local_shard(tensor), "")
    if layout.startswith("sparse_"):
        return sum(bytes_of(part, "") for part in _sparse_parts(tensor, layout))
    tensor = functorch_inner(tensor)
    full = dim(tensor.numel()) * tensor.element_size()
    if full < 0:
        raise ValueError("symbolic size")
    return int(min(full, attempt(lambda: dim(tensor.untyped_storage().nbytes()), full)))
