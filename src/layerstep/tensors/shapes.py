"""Values of any kind by their shapes. Reads no values of a tensor."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch

from layerstep._torch.tensors import attempt, dim, is_tensor, is_torch

__all__ = ["attempt", "dim", "dtype_name", "is_torch", "leaves_in", "shape_line", "shape_of", "tensors_in"]

DEPTH, VISITS, LINE, WORD = 6, 10_000, 160, 24  # bounds of a walk through containers, and of its text


def dtype_name(dtype: torch.dtype) -> str:
    """The short name: f32, bf16, f8e4m3fn, i64, u8, bool, c64, qint8."""
    name = str(dtype).removeprefix("torch.")
    for long, short in (("bfloat", "bf"), ("float", "f"), ("complex", "c"), ("uint", "u"), ("int", "i")):
        if name.startswith(long):
            return short + name.removeprefix(long).replace("_", "")
    return name


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    if is_torch(tensor, "UninitializedTensorMixin"):
        return ()
    try:
        return tuple(dim(size) for size in tensor.shape)
    except RuntimeError:  # a strided nested tensor tells its sizes one by one, and only the regular ones
        return tuple(attempt(partial(tensor.size, i), -1) for i in range(tensor.dim()))


def shape_line(value: object, *, most: int = 4) -> str:
    """One bounded line for any value, shapes first: `(f32[2, 16], None)`, `{loss: f32[]}`."""
    text = str(attempt(lambda: _line(value, most, ()), type(value).__name__))
    return text if len(text) <= LINE else text[: LINE - 1] + "…"


def tensors_in(value: object, *, most: int = 32) -> list[tuple[str, torch.Tensor]]:
    """The tensors in nested containers, each with the expression that leads to it: `.logits`, `['a'][0]`."""
    found: list[tuple[str, torch.Tensor]] = []
    attempt(lambda: _walk(value, "", (), found, most, iter(range(VISITS))), None)
    return found[:most]


def _walk(
    item: object,
    path: str,
    above: tuple[int, ...],
    found: list[tuple[str, torch.Tensor]],
    most: int,
    visits: Iterator[int],
) -> None:
    # Not a function inside `tensors_in`: one that calls itself is a cycle, and would keep the
    # tensors alive until the collector runs.
    if is_tensor(item):
        found.append((path, item))
    elif id(item) not in above and len(above) < DEPTH:
        for _, step, child in _children(item):
            if len(found) >= most or next(visits, None) is None:
                return
            _walk(child, path + step, (*above, id(item)), found, most, visits)


def leaves_in(value: object, *, most: int) -> list[tuple[str, object]]:
    """The items of a container in order, each with the expression that leads to it.

    An inner container is opened if it holds a tensor; anything else is a leaf.
    """
    found: list[tuple[str, object]] = []
    attempt(lambda: _open(value, "", (), found, most), None)
    return found[:most]


def _open(
    item: object, path: str, above: tuple[int, ...], found: list[tuple[str, object]], most: int
) -> None:
    is_open = not above or (_size(item) and id(item) not in above and tensors_in(item, most=1))
    if is_tensor(item) or not is_open:
        found.append((path, item))
        return
    for _, step, child in _children(item):
        if len(found) >= most:
            return
        _open(child, path + step, (*above, id(item)), found, most)


def _line(value: object, most: int, above: tuple[int, ...]) -> str:
    if is_tensor(value):
        return f"{dtype_name(value.dtype)}[{', '.join('*' if n < 0 else str(n) for n in shape_of(value))}]"
    size = _size(value)
    if size is None:
        return _word(value)
    if id(value) in above or len(above) >= DEPTH:
        return "…"
    inside = (*above, id(value))
    items = [name + _line(child, most, inside) for name, _, child in islice(_children(value), most)]
    items += [f"… {size - most} more"] if size > most else []
    kind = type(value)
    pairs: dict[type, tuple[str, str]] = {
        tuple: ("(", ")"),
        list: ("[", "]"),
        dict: ("{", "}"),
        set: ("{", "}"),
    }
    left, right = pairs.get(kind, (f"{kind.__name__}(", ")"))
    return left + ", ".join(items) + ("," if kind is tuple and size == 1 else "") + right


def _size(value: Any) -> int | None:
    """How many children it has; None if it is not a container."""
    if isinstance(value, tuple | list | deque | Mapping | set | frozenset):
        return len(value)
    return len(fields(value)) if is_dataclass(value) and not isinstance(value, type) else None


def _children(value: Any) -> Iterator[tuple[str, str, object]]:
    """Label, accessor and value of each child. Stops where the user's container raises."""
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
    elif isinstance(value, set | frozenset):
        yield from (("", f"{{{i}}}", child) for i, child in enumerate(value))
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
