"""What a tensor holds, in bounded time and memory, whatever kind of tensor it is.

torch moves and converts blocks, numpy counts. All of it runs below the user's modes (`_guard`),
so that no profiler, vmap or fake mode sees it, and nothing raises: what cannot be read gets a note.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["Stats", "Summary", "dtype_name", "shape_line", "summarize", "tensors_in"]

Array = npt.NDArray[Any]
Part = tuple[torch.Tensor, ...]  # (values,) or (integers, zero_point, scale), all of one shape

BLOCK = 1 << 16  # elements: 256 KiB of float32 stay in the L2 cache
COPY_LIMIT = 1 << 24  # bytes: what cannot be read in pieces is copied up to this size only
DEPTH, VISITS, LINE, WORD = 6, 10_000, 160, 24  # bounds of a walk through containers, and of its text
F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
ONES = np.ones(BLOCK, F32)

_is_lazy_clone: Callable[[torch.Tensor], bool] = getattr(torch._C, "_is_cow_tensor", lambda _: False)


@dataclass(frozen=True, slots=True)
class Stats:
    """What the elements are: floats are over the finite ones, `std` is of the population (correction 0).

    Exact unless `sampled` says how many elements were looked at; then all but `count` is of those.
    """

    count: int
    nan: int
    posinf: int
    neginf: int
    zero: int
    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    abs_mean: float | None
    l2: float | None
    sampled: int | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """A tensor described; -1 in `shape` is a ragged or symbolic dimension, `note` qualifies `stats`."""

    dtype: str
    shape: tuple[int, ...]
    device: str
    layout: str
    nbytes: int | None
    requires_grad: bool
    stats: Stats | None
    note: str


def summarize(tensor: torch.Tensor, *, limit: int | None = None) -> Summary:
    """Describe any tensor, never raise; look at no more than `limit` elements, evenly spread."""
    with _guard():
        stats, layout, note = None, "unknown", ""
        try:
            values = _open(tensor)
            layout, note = values.layout, values.note
            if values.parts is not None:
                enough = limit is None or limit > 0
                stats, note = (_measure(values, limit), note) if enough else (None, "not looked at")
        except Exception as error:  # a kind of tensor unknown here must not end the user's run
            note = f"values cannot be read: {type(error).__name__}"
        return Summary(
            dtype=_attempt(lambda: dtype_name(tensor.dtype), "?"),
            shape=_attempt(lambda: _shape(tensor), ()),
            device=_attempt(lambda: str(tensor.device), "?"),
            layout=layout,
            nbytes=_attempt(lambda: _nbytes(tensor, layout), None),
            requires_grad=_attempt(lambda: bool(tensor.requires_grad), False),
            stats=stats,
            note=note,
        )


def dtype_name(dtype: torch.dtype) -> str:
    """The short name: f32, bf16, f8e4m3fn, i64, u8, bool, c64, qint8."""
    name = str(dtype).removeprefix("torch.")
    for long, short in (("bfloat", "bf"), ("float", "f"), ("complex", "c"), ("uint", "u"), ("int", "i")):
        if name.startswith(long):
            return short + name.removeprefix(long).replace("_", "")
    return name


def _guard() -> ExitStack:
    """No gradient, no function or dispatch mode, no functorch level, no numpy warnings."""
    stack, c = ExitStack(), torch._C
    for off in (torch.no_grad, c.DisableTorchFunction, c._DisableTorchDispatch, c._DisableFuncTorch):
        stack.enter_context(off())
    stack.enter_context(np.errstate(all="ignore"))
    return stack


def _attempt(read: Callable[[], Any], default: Any) -> Any:
    try:
        with torch._C.DisableTorchFunction():
            return read()
    except Exception:
        return default


# --- kinds of tensor: where the values are -----------------------------------------------------------


class _Values(NamedTuple):
    """The parts that hold the values and how many zeros are not stored; no parts: the note says why."""

    parts: list[Part] | None
    note: str = ""
    implicit: int = 0
    layout: str = ""


def _open(tensor: torch.Tensor) -> _Values:
    tensor = _unwrapped(tensor)
    layout, reader = next(((name, reader) for name, test, reader in _KINDS if test(tensor)), ("", _plain))
    if not layout and tensor.layout != torch.strided:
        layout, reader = str(tensor.layout).removeprefix("torch."), _sparse
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        reader = "a CUDA graph is being captured"  # which a copy to the host would break
    values = _Values(None, reader) if isinstance(reader, str) else reader(tensor)
    missing = next(filter(None, (_absent(part[0]) for part in values.parts or ())), "")
    if missing:
        return _Values(None, missing, layout=layout)
    if values.parts and values.parts[0][0].is_complex():
        values = values._replace(note=f"{values.note} of |z|".strip())
    return values._replace(layout=layout)


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor below the wrappers of `torch.func.grad` and `jvp`."""
    while torch._C._functorch.is_gradtrackingtensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def _is_torch(tensor: torch.Tensor, name: str) -> bool:
    """By name: importing the class only to ask costs up to a second (DTensor)."""
    return any(c.__name__ == name and c.__module__.startswith("torch.") for c in type(tensor).__mro__)


def _absent(tensor: torch.Tensor) -> str:
    """Why there is no memory behind the shape, or ""; reading on would be a segmentation fault."""
    if tensor.numel() == 0 or _is_lazy_clone(tensor):  # a lazy clone: asking would copy it
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


def _plain(tensor: torch.Tensor) -> _Values:
    if tensor._is_zerotensor():  # claims a storage that is not there
        tensor = torch.zeros((), dtype=torch.float32, device="cpu").expand(tensor.shape)
    return _Values([(tensor.detach().as_subclass(torch.Tensor),)])


def _local(tensor: Any) -> _Values:
    values = _open(tensor._local_tensor)
    return values._replace(note=f"local shard {values.note}".strip())


def _sparse(tensor: torch.Tensor) -> _Values:
    note, tensor = "stored values", tensor.detach()
    if tensor.is_sparse and not tensor.is_coalesced() and not _absent(tensor._values()):
        if _nbytes(tensor, "sparse_coo") > COPY_LIMIT:
            note = "stored values, duplicates not added up"
        else:
            tensor = tensor.coalesce()
    stored = tensor._values() if tensor.is_sparse else tensor.values()
    return _Values([(stored,)], note, max(0, tensor.numel() - stored.numel()))


def _nested(tensor: Any) -> _Values:
    if tensor.layout == torch.strided:
        return _Values([(part,) for part in tensor.detach().unbind()])
    values = tensor._values.detach()
    if tensor._lengths is None:
        return _Values([(values,)])
    spans = zip(tensor._offsets.tolist(), tensor._lengths.tolist(), strict=False)
    return _Values([(values.narrow(tensor._ragged_idx - 1, at, n),) for at, n in spans])


def _quantized(tensor: torch.Tensor) -> _Values:
    """The integers in their own storage, and their scales: `dequantize` would copy all of it."""
    dtypes = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}
    if tensor.is_neg():  # lost its quantizer; asking for the scheme is a segmentation fault (torch 2.13)
        return _Values(None, "a negated view of a quantized tensor has no scale")
    if tensor.dtype not in dtypes:  # several values to the byte
        return _copied(tensor)
    if _absent(tensor):  # or else `set_` would grow the freed storage again
        return _Values(None, _absent(tensor))
    raw = torch.empty(0, dtype=dtypes[tensor.dtype], device=tensor.device)
    raw.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
    along = [1] * raw.dim()
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        affine = (tensor.q_zero_point(), tensor.q_scale())
        both = [torch.tensor(each, dtype=torch.float64, device="cpu") for each in affine]
    else:
        along[tensor.q_per_channel_axis()] = -1
        both = [tensor.q_per_channel_zero_points().cpu(), tensor.q_per_channel_scales().cpu()]
    return _Values([(raw, *(each.view(along).expand(raw.shape) for each in both))])


def _copied(tensor: torch.Tensor) -> _Values:
    if tensor.numel() * tensor.element_size() > COPY_LIMIT:
        return _Values(None, "too large to unpack only for a look")
    if tensor.is_quantized and not tensor.untyped_storage().nbytes():
        return _Values(None, "its storage is freed")
    return _Values([(tensor.detach().dequantize() if tensor.is_quantized else tensor.detach().to_dense(),)])


_KINDS: tuple[tuple[str, Callable[[Any], bool], Callable[[Any], _Values] | str], ...] = (
    ("lazy", lambda t: _is_torch(t, "UninitializedTensorMixin"), "not initialized yet"),
    ("vmapped", torch._C._functorch.is_batchedtensor, "values are not readable inside vmap"),
    ("functional", torch._is_functional_tensor, "values are not readable while functionalized"),
    ("fake", lambda t: _is_torch(t, "FakeTensor"), "a fake tensor has no values"),
    ("dtensor", lambda t: _is_torch(t, "DTensor"), _local),
    ("meta", lambda t: t.is_meta, "no values on the meta device"),
    ("nested", lambda t: t.is_nested, _nested),
    ("quantized", lambda t: t.is_quantized, _quantized),
    ("mkldnn", lambda t: t.is_mkldnn, _copied),
    ("sparse_coo", lambda t: t.is_sparse, _sparse),
)


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    if _is_torch(tensor, "UninitializedTensorMixin"):
        return ()
    try:
        return tuple(_dim(size) for size in tensor.shape)
    except RuntimeError:  # a strided nested tensor tells its sizes one by one, and only the regular ones
        return tuple(_attempt(partial(tensor.size, i), -1) for i in range(tensor.dim()))


def _dim(size: Any) -> int:
    if type(size) is int:
        return size
    known = size.node.maybe_as_int()  # int() would leave a guard in a graph that is being traced
    return -1 if known is None else int(known)


def _nbytes(tensor: Any, layout: str) -> int:
    """What the shape asks for, or the storage if that is smaller (expanded, freed)."""
    if layout == "dtensor":
        return _nbytes(tensor._local_tensor, "")
    if layout.startswith("sparse_"):
        index = {"o": "_indices", "r": "crow_indices col_indices", "c": "ccol_indices row_indices"}[
            layout[-1]
        ]
        names = ["_values" if layout == "sparse_coo" else "values", *index.split()]
        return sum(_nbytes(getattr(tensor, name)(), "") for name in names)
    tensor = _unwrapped(tensor)
    full = _dim(tensor.numel()) * tensor.element_size()
    if full < 0:
        raise ValueError("symbolic size")
    return int(min(full, _attempt(lambda: _dim(tensor.untyped_storage().nbytes()), full)))


# --- counting ----------------------------------------------------------------------------------------


def _measure(values: _Values, limit: int | None) -> Stats:
    parts = values.parts or []
    stored = sum(part[0].numel() for part in parts)
    count, repeat, at, rows = stored + values.implicit, 1, 0, list[Stats]()
    if len(parts) == 1 and stored:
        part, repeat = _distinct(parts[0])
        parts, stored = [part], stored // repeat
    step = 1 if limit is None or stored <= limit else -(-stored // limit)
    while step > 1 and math.gcd(step, stored) > 1:  # or else it could walk down a single column
        step += 1
    for part in parts:
        for block in _blocks(part, -at % step, step):
            rows.append(_count(block, (rows[-1].mean if rows else None) or 0.0))
        at += part[0].numel()
    if step > 1:
        return replace(_merge(rows, 1), count=count, sampled=sum(row.count for row in rows))
    total = _merge(rows, repeat)
    return replace(total, count=count, zero=total.zero + values.implicit)


def _distinct(part: Part) -> tuple[Part, int]:
    """One of each expanded dimension, and how often it is there; the others in the order of memory."""
    lead = part[0]
    again = [d for d in range(lead.dim()) if lead.size(d) > 1 and not any(t.stride(d) for t in part)]
    repeat = math.prod(lead.size(d) for d in again)
    for d in reversed(again):
        part = tuple(t.select(d, 0) for t in part)
    order = sorted(range(part[0].dim()), key=part[0].stride, reverse=True)
    return tuple(t.permute(order) for t in part), repeat


def _pieces(part: Part, start: int, step: int) -> Iterator[Part]:
    """Views of at most a block, or every `step`-th element; by index where there is no flat view."""
    if all(t.is_contiguous() for t in part):
        yield from _split(tuple(t.view(-1)[start::step] for t in part))
    elif step == 1:
        yield from _split(part)
    else:
        shape, total = tuple(part[0].shape), part[0].numel()
        span = step * max(1, BLOCK // len(shape))  # an index array for each dimension
        for at in range(start, total, span):
            flat = np.arange(at, min(at + span, total), step)
            index = tuple(torch.from_numpy(each) for each in np.unravel_index(flat, shape))
            yield tuple(t[index] for t in part)


def _split(part: Part) -> Iterator[Part]:
    total, length = part[0].numel(), len(part[0]) if part[0].dim() else 1
    if 0 < total <= BLOCK:
        yield part
    elif total:
        size = -(-length // -(-total // BLOCK))  # even pieces: 65537 is not 65536 and 1
        for at in range(0, length, size):
            yield from _split(tuple(t[at] if size == 1 else t[at : at + size] for t in part))


def _blocks(part: Part, start: int, step: int) -> Iterator[Array]:
    """Flat float32 or float64 blocks, in place where that is possible."""
    lead = part[0]
    ready = lead.dtype in (torch.float32, torch.float64) and len(part) == step == 1 and lead.is_cpu
    if ready and lead.is_contiguous() and not lead.is_neg() and not _is_lazy_clone(lead):
        flat = lead.view(-1).numpy()  # of a lazy clone this would copy all of it
        yield from (flat[at : at + BLOCK] for at in range(0, flat.size, BLOCK))
    else:
        yield from (_load(piece) for piece in _pieces(part, start, step))


def _load(part: Part) -> Array:
    """A copy, from any device, dtype and stride."""
    part = tuple(t.cpu() for t in part)
    lead, shape = part[0], tuple(part[0].shape)
    narrow = lead.dtype.itemsize <= 2 or lead.dtype in (torch.float32, torch.complex64, torch.complex32)
    if lead.is_complex():
        pairs = np.empty(shape, np.complex64 if narrow else np.complex128)
        torch.from_numpy(pairs).copy_(lead)
        return np.abs(pairs).reshape(-1)
    block: Array = np.empty(shape, F32 if narrow else F64)
    target = torch.from_numpy(block).copy_(lead)
    if len(part) > 1:
        target.sub_(part[1]).mul_(part[2])
    return block.reshape(-1)


def _count(block: Array, guess: float) -> Stats:
    size, lo, hi = block.size, float(block.min()), float(block.max())  # numpy's carry NaN
    nan = up = down = 0
    if not (lo > -math.inf and hi < math.inf):
        odd = (block != block, block == np.inf, block == -np.inf)
        nan, up, down = (int(np.count_nonzero(each)) for each in odd)
        block = block[np.isfinite(block)]
        if not block.size:
            return Stats(size, nan, up, down, 0, None, None, None, None, None, None)
        lo, hi = float(block.min()), float(block.max())
    # equal, then count: 0.14 ns per element; count_nonzero of float32: 0.5
    zero = int(np.count_nonzero(np.equal(block, 0))) if lo <= 0 <= hi else 0
    return Stats(size, nan, up, down, zero, lo, hi, *_moments(block, lo, hi, guess), None)


def _moments(block: Array, lo: float, hi: float, guess: float) -> tuple[float, float, float]:
    """Mean, std and mean magnitude, in units in which squares neither overflow nor vanish."""
    peak, power = max(-lo, hi), 0
    if block.dtype == F32 and not 1e-9 < peak < 1e15:
        block = block.astype(F64)
    elif block.dtype == F64 and peak > 0 and not 1e-130 < peak < 1e130:
        power, guess = math.frexp(peak)[1], 0.0
        block, lo, hi = np.ldexp(block, -power), math.ldexp(lo, -power), math.ldexp(hi, -power)
    mean, std = _centred(block, min(max(guess, lo), hi))
    magnitude = _sum(np.abs(block)) / block.size if lo < 0 < hi else abs(mean)
    mean, std, magnitude = (float(np.ldexp(x, power)) for x in (mean, std, magnitude))
    return mean, std, magnitude


def _centred(block: Array, guess: float) -> tuple[float, float]:
    """About a guess, and again if that was off by more than a std: 1000 +- 1e-3 in float32."""
    for _ in range(2):
        shift = block.dtype.type(guess)
        rest = block - shift
        off = _sum(rest) / block.size
        variance = float(np.dot(rest, rest)) / block.size - off * off
        guess = float(shift) + off
        if off * off <= variance:
            break
    return guess, math.sqrt(max(variance, 0.0))


def _sum(block: Array) -> float:
    """By BLAS: 0.15 ns per element against 0.3 of np.sum."""
    return float(np.dot(block, ONES[: block.size]) if block.dtype == F32 else block.sum())


def _merge(rows: list[Stats], repeat: int) -> Stats:
    """Chan's merge, of all blocks at once, in float64 and in units of the peak: 1e300 squared is inf."""
    nan, up, down = (repeat * sum(getattr(row, name) for row in rows) for name in ("nan", "posinf", "neginf"))
    zero = repeat * sum(row.zero for row in rows)
    rows = [row for row in rows if row.min is not None]
    if not rows:
        return Stats(0, nan, up, down, zero, None, None, None, None, None, None)
    table = [(r.count - r.nan - r.posinf - r.neginf, r.min, r.max, r.mean, r.std, r.abs_mean) for r in rows]
    sizes, los, his, *moments = np.array(table, dtype=F64).T
    n, lo, hi = float(sizes.sum()), float(los.min()), float(his.max())
    power = math.frexp(max(-lo, hi))[1]
    weights, (means, stds, magnitudes) = sizes / n, np.ldexp(moments, -power)
    mean, magnitude = (float(x[0] + np.dot(weights, x - x[0])) for x in (means, magnitudes))  # ones stay 1.0
    std = math.sqrt(np.dot(weights, stds * stds + (means - mean) ** 2))
    l2 = math.hypot(mean, std) * math.sqrt(n * repeat)
    mean, std, magnitude, l2 = (float(np.ldexp(x, power)) for x in (mean, std, magnitude, l2))
    return Stats(0, nan, up, down, zero, lo, hi, mean, std, magnitude, l2)


# --- values of any kind, by shape only ---------------------------------------------------------------


def shape_line(value: object, *, most: int = 4) -> str:
    """One bounded line for any value, shapes first: `(f32[2, 16], None)`, `{loss: f32[]}`."""
    text = str(_attempt(lambda: _line(value, most, ()), type(value).__name__))
    return text if len(text) <= LINE else text[: LINE - 1] + "…"


def tensors_in(value: object, *, most: int = 32) -> list[tuple[str, torch.Tensor]]:
    """The tensors in nested containers, each with the expression that leads to it: `.logits`, `['a'][0]`."""
    found: list[tuple[str, torch.Tensor]] = []
    visits = iter(range(VISITS))

    def walk(path: str, item: object, above: tuple[int, ...]) -> None:
        if isinstance(item, torch.Tensor):
            found.append((path, item))
        elif id(item) not in above and len(above) < DEPTH:
            for _, step, child in _children(item):
                if len(found) >= most or next(visits, None) is None:
                    return
                walk(path + step, child, (*above, id(item)))

    _attempt(lambda: walk("", value, ()), None)
    return found[:most]


def _line(value: object, most: int, above: tuple[int, ...]) -> str:
    if isinstance(value, torch.Tensor):
        return f"{dtype_name(value.dtype)}[{', '.join('*' if n < 0 else str(n) for n in _shape(value))}]"
    size = _size(value)
    if size is None:
        return _word(value)
    if id(value) in above or len(above) >= DEPTH:
        return "…"
    inside = (*above, id(value))
    items = [name + _line(child, most, inside) for name, _, child in islice(_children(value), most)]
    items += [f"… {size - most} more"] if size > most else []
    kind = type(value)
    pairs: dict[type, tuple[str, str]] = {tuple: ("(", ")"), list: ("[", "]"), dict: ("{", "}")}
    left, right = pairs.get(kind, (f"{kind.__name__}(", ")"))
    return left + ", ".join(items) + ("," if kind is tuple and size == 1 else "") + right


def _size(value: Any) -> int | None:
    """How many children, or None if it is no container."""
    if isinstance(value, tuple | list | deque | Mapping):
        return len(value)
    return len(fields(value)) if is_dataclass(value) and not isinstance(value, type) else None


def _children(value: Any) -> Iterator[tuple[str, str, object]]:
    """Label, accessor and value of each child, as far as the user's containers give them."""
    try:
        yield from _entries(value)
    except Exception:
        return


def _entries(value: Any) -> Iterator[tuple[str, str, object]]:
    kind = type(value)
    names = getattr(kind, "_fields", None) or (getattr(kind, "n_fields", None) and kind.__match_args__)
    if isinstance(value, Mapping):
        for key, child in value.items():
            attribute = _is_attribute(value, key)
            yield (f"{key}=", f".{key}", child) if attribute else (f"{_key(key)}: ", f"[{key!r}]", child)
    elif isinstance(value, tuple) and names:  # torch.return_types have no _fields
        yield from ((f"{name}=", f".{name}", child) for name, child in zip(names, value, strict=False))
    elif isinstance(value, tuple | list | deque):
        yield from (("", f"[{i}]", child) for i, child in enumerate(value))
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((f"{f.name}=", f".{f.name}", getattr(value, f.name, None)) for f in fields(value))


def _is_attribute(value: Any, key: object) -> bool:
    """Whether a mapping has the key as an attribute too, as ModelOutput does; runs none of its code."""
    if not isinstance(key, str) or not key.isidentifier():
        return False
    kind = type(value)
    return key in getattr(value, "__dict__", ()) or (hasattr(kind, "__getattr__") and not hasattr(kind, key))


def _key(key: object) -> str:
    return key[:WORD] if isinstance(key, str) and key.isidentifier() else _word(key)


def _word(value: Any) -> str:
    if isinstance(value, str | bytes):
        return repr(value[:WORD]) + ("…" if len(value) > WORD else "")
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, np.ndarray):
        return f"np.{value.dtype}{list(value.shape)}"
    plain = value is None or isinstance(value, bool | complex | torch.dtype | torch.device)
    return (
        repr(value)
        if plain or (isinstance(value, int) and value.bit_length() <= 64)
        else type(value).__name__
    )
