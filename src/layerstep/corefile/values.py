"""Values in a core file: containers, numbers, words as JSON; tensors by number; the rest described."""

from __future__ import annotations

import base64
import collections
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from layerstep._torch.tensors import is_tensor
from layerstep.corefile.restored_tensors import RestoredTensors
from layerstep.corefile.tensors import TensorTable
from layerstep.errors import RecordingError

__all__ = [
    "NotInCore",
    "Record",
    "ValueEncoder",
    "decode",
    "missing_in",
    "tensors_with_places",
    "without_home",
]

DEPTH, VISITS, TEXT = 24, 50_000, 10_000
"""Bounds of a walk through containers, and of a string."""

_HOME = os.path.expanduser("~")


def without_home(text: str) -> str:
    """A text that other people may read: the user's home directory is `~`."""
    return text.replace(_HOME, "~") if len(_HOME) > 1 else text


class NotInCore:
    """Replaces an object that a file cannot hold: has its repr, and a class of the same name."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _not_in_core(kind: str, text: str) -> NotInCore:
    made: NotInCore = type(kind, (NotInCore,), {})(text)
    return made


class Record(dict[str, Any]):
    """The fields of an object, by name and as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class ValueEncoder:
    """Encodes the values of one file."""

    def __init__(self, tensors: TensorTable, number_of: Callable[[nn.Module], int | None]) -> None:
        self.tensors = tensors
        self._number_of = number_of
        """The number of a module in the file."""
        self._visits = 0

    def encode(self, value: Any, name: str, *, keep: bool = True, depth: int = DEPTH) -> Any:
        """The JSON of a value. Without `keep`, only the shapes of its tensors go into the file."""
        self._visits += 1
        plain = _plain(value)
        if plain is not None or value is None:
            return plain
        if is_tensor(value):
            return {"is": "tensor", "number": self.tensors.add(value, name, keep=keep)}
        if isinstance(value, nn.Module):
            return {"is": "module", "number": self._number_of(value), "text": type(value).__name__}
        if depth and self._visits < VISITS:
            inside = self._container(
                value, lambda item, label: self.encode(item, f"{name}.{label}", keep=keep, depth=depth - 1)
            )
            if inside is not None:
                return inside
        return {"is": "other", "type": type(value).__name__, "text": _looks(value)}

    def _container(self, value: Any, encode: Callable[[Any, Any], Any]) -> Any:
        kind = type(value)
        if kind in (list, tuple, set, frozenset):
            return {"is": kind.__name__, "items": [encode(item, i) for i, item in enumerate(value)]}
        if kind in (dict, collections.OrderedDict):
            pairs = [[encode(key, "key"), encode(item, key)] for key, item in value.items()]
            return {"is": "dict" if kind is dict else "ordered", "items": pairs}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            items = {key: encode(getattr(value, key), key) for key in value._fields}
            return {"is": "named", "type": kind.__name__, "items": items}
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            copied = torch.from_numpy(np.array(value, dtype=value.dtype.newbyteorder("=")))
            return {"is": "array", "item": encode(copied, "array")}
        if isinstance(value, Mapping) and (inside := _pairs(value)) is not None:
            items = {str(key): encode(item, key) for key, item in inside}
            return {"is": "record", "type": kind.__name__, "items": items}
        if is_dataclass(value) and not isinstance(value, type):
            items = {f.name: encode(getattr(value, f.name, None), f.name) for f in fields(value)}
            return {"is": "record", "type": kind.__name__, "items": items}
        return None


def _pairs(value: Mapping[Any, Any]) -> list[tuple[Any, Any]] | None:
    """What is in a mapping, if it tells. To iterate may mean something else, as in a TensorDict: its rows."""
    try:
        return list(value.items())
    except Exception:  # a class of the user's that fails
        return None


def _plain(value: Any) -> Any:
    """The JSON of a plain value; None for tensors, containers and everything else."""
    kind = type(value)
    if kind in (bool, int):
        return value
    if kind is str and len(value) <= TEXT and without_home(value) == value:
        return value
    if kind is float:
        return value if np.isfinite(value) else {"is": "float", "text": repr(value)}
    if kind is complex:
        return {"is": "complex", "text": [repr(value.real), repr(value.imag)]}
    if kind is bytes and len(value) <= TEXT:
        return {"is": "bytes", "text": base64.b64encode(value).decode()}
    return _plain_object(value, kind)


def _plain_object(value: Any, kind: type) -> Any:
    if kind is torch.Size:
        return {"is": "size", "items": list(value)}
    if kind in (torch.dtype, torch.device, torch.layout):
        return {"is": kind.__name__, "text": str(value).removeprefix("torch.")}
    if kind in (slice, range) and all(p is None or type(p) is int for p in _bounds(value)):
        return {"is": kind.__name__, "items": list(_bounds(value))}
    if value is Ellipsis:
        return {"is": "ellipsis"}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {"is": "scalar", "type": value.dtype.name, "text": repr(value.item())}
    return None


def _bounds(value: Any) -> tuple[Any, Any, Any]:
    return value.start, value.stop, value.step


def _looks(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:  # the user's repr fails
        text = f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
    return without_home(text)[:200]


def decode(
    encoded: Any, tensors: RestoredTensors, module_at: Callable[[int], nn.Module] | None = None
) -> Any:
    """The value from its JSON; a `NotInCore` for what the file does not hold."""
    if encoded is None or isinstance(encoded, (bool, int, float, str)):
        return encoded
    if not isinstance(encoded, dict) or not isinstance(encoded.get("is"), str):
        raise RecordingError("it holds a value of an unknown form")
    kind = encoded["is"]
    if kind == "tensor":
        return tensors.get(encoded["number"])
    if kind == "module":
        known = module_at is not None and encoded["number"] is not None
        return module_at(encoded["number"]) if known and module_at else _not_in_core(str(encoded["text"]), "")
    if kind == "other":
        return _not_in_core(str(encoded["type"]), str(encoded["text"]))
    if kind in _PLAIN:
        return _PLAIN[kind](encoded)
    return _decode_container(kind, encoded, lambda item: decode(item, tensors, module_at))


def _decode_container(kind: str, encoded: Any, inside: Callable[[Any], Any]) -> Any:
    if kind == "array":
        return inside(encoded["item"]).numpy()
    items = encoded.get("items")
    if kind in ("dict", "ordered"):
        made = {} if kind == "dict" else collections.OrderedDict[Any, Any]()
        made.update((inside(key), inside(item)) for key, item in items)
        return made
    if kind in ("list", "tuple", "set", "frozenset"):
        builders: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
        return builders[kind](inside(item) for item in items)
    if kind == "named":
        made_type = collections.namedtuple(str(encoded["type"]), list(items), rename=True)  # type: ignore[misc]
        return made_type(*map(inside, items.values()))
    if kind == "record":
        of_type = type(str(encoded["type"]), (Record,), {})
        return of_type({str(key): inside(item) for key, item in items.items()})
    raise RecordingError(f"it holds a value of an unknown kind: {kind!r}")


def _torch_word(encoded: Any, kind: type) -> Any:
    value = getattr(torch, str(encoded["text"]), None)
    return value if isinstance(value, kind) else _not_in_core(kind.__name__, str(encoded["text"]))


_PLAIN: dict[str, Callable[[Any], Any]] = {
    "float": lambda e: float(e["text"]),
    "complex": lambda e: complex(float(e["text"][0]), float(e["text"][1])),
    "bytes": lambda e: base64.b64decode(e["text"]),
    "size": lambda e: torch.Size(e["items"]),
    "dtype": lambda e: _torch_word(e, torch.dtype),
    "layout": lambda e: _torch_word(e, torch.layout),
    "device": lambda e: torch.device(e["text"]),
    "slice": lambda e: slice(*e["items"]),
    "range": lambda e: range(*e["items"]),
    "ellipsis": lambda e: Ellipsis,
    "scalar": lambda e: np.dtype(e["type"]).type(_number(e["text"])),
}


def _number(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    return int(text) if text.lstrip("-").isdecimal() else float(text)


def _items(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(str(key), item) for key, item in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [(str(place), item) for place, item in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name, None)) for f in fields(value)]
    return []


def tensors_with_places(value: Any, place: str = "", *, depth: int = DEPTH) -> Iterator[tuple[str, Tensor]]:
    """(place, tensor) of every tensor in a value, in its order."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        value = torch.from_numpy(np.array(value))
    if is_tensor(value):
        yield place, value
    elif depth:
        for name, item in _items(value):
            yield from tensors_with_places(item, f"{place}.{name}" if place else name, depth=depth - 1)


def missing_in(value: Any, place: str = "", *, depth: int = DEPTH) -> list[str]:
    """The parts of a decoded value that the file does not hold: `past_key_values (DynamicCache)`."""
    if isinstance(value, NotInCore):
        return [f"{place or 'it'} ({type(value).__name__})"]
    if is_tensor(value):
        return [f"{place or 'it'} (tensor)"] if getattr(value, "not_in_core", False) else []
    found = _items(value) if depth else []
    return [
        text
        for name, item in found
        for text in missing_in(item, f"{place}.{name}" if place else name, depth=depth - 1)
    ]
