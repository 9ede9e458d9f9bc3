"""Key-value caches, as transformers makes them, put back to what they held when a call began.

A call adds to its cache, so a rerun needs the cache as it was. When an outermost call begins, we note the
length of each layer; later a copy of the cache is cut to that length. Of a call whose beginning we did not
see, the newest keys in the cache tell whether it has added to it.
"""

from __future__ import annotations

import copy
import weakref
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from layerstep._torch import below_everything
from layerstep._torch.tensors import is_tensor, version_of
from layerstep.engine.instrument import Instrument
from layerstep.errors import UserError

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["CacheBefore", "Caches", "CallProgress", "is_cache"]


class CallProgress(StrEnum):
    """How far the real call has come. Its inputs are as they were before it, or it may have written them."""

    BEFORE = "before"
    DURING = "during"
    AFTER = "after"


def is_cache(value: Any) -> bool:
    """Is this a cache as transformers makes them: with layers, and an `update` that appends?"""
    try:
        nested = hasattr(value, "self_attention_cache") and hasattr(value, "cross_attention_cache")
        return callable(getattr(value, "update", None)) and (
            isinstance(getattr(value, "layers", None), list) or nested
        )
    except Exception:  # the program's `__getattr__` raises
        return False


@dataclass(slots=True)
class _CacheState:
    """A cache at the beginning of a call: the length of each layer, None if it was not in use yet."""

    lengths: list[int | None] = field(default_factory=list)
    others: list[dict[str, tuple[int, int]]] = field(default_factory=list)
    """The other tensors of each layer, such as the size of a window: their ids and counts of writes."""
    parts: dict[str, _CacheState] = field(default_factory=dict)
    """The caches that it consists of, by attribute."""
    tables: dict[str, dict[Any, Any]] = field(default_factory=dict)


class Caches(Instrument):
    """The caches that outermost calls were given, as long as they live."""

    def __init__(self, session: Session) -> None:
        self._noted: dict[int, tuple[weakref.ref[Any], _CacheState]] = {}

    def begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for value in (*args, *kwargs.values()):
            if not is_tensor(value) and is_cache(value):
                try:
                    self._noted[id(value)] = (weakref.ref(value), _note(value))
                except Exception:  # a cache built differently
                    self._noted.pop(id(value), None)

    def before(self, cache: Any) -> Any:
        """A copy of a cache as it was when the outermost call began; None if we did not see that."""
        reference, noted = self._noted.get(id(cache), (None, None))
        if reference is None or noted is None or reference() is not cache:
            return None
        return _cut(cache, noted)


def _note(cache: Any) -> _CacheState:
    with below_everything():
        layers = getattr(cache, "layers", None) or []
        names = ("self_attention_cache", "cross_attention_cache")
        return _CacheState(
            [_length(layer) for layer in layers],
            [_others(layer) for layer in layers],
            {name: _note(getattr(cache, name)) for name in names if hasattr(cache, name)},
            {name: dict(value) for name, value in vars(cache).items() if type(value) is dict},
        )


def _length(layer: Any) -> int | None:
    return int(layer.get_seq_length()) if getattr(layer, "keys", None) is not None else None


_OWN = frozenset(("keys", "values", "cumulative_length"))


def _others(layer: Any) -> dict[str, tuple[int, int]]:
    tensors = {name: value for name, value in vars(layer).items() if is_tensor(value) and name not in _OWN}
    return {name: (id(value), version_of(value)) for name, value in tensors.items()}


def _cut(cache: Any, noted: _CacheState) -> Any:
    twin = copy.copy(cache)
    twin.__dict__.update({name: dict(value) for name, value in noted.tables.items()})
    for name, part in noted.parts.items():
        setattr(twin, name, _cut(getattr(cache, name), part))
    if isinstance(getattr(cache, "layers", None), list):
        with below_everything():
            noted_layers = zip(cache.layers, noted.lengths, noted.others, strict=False)
            twin.layers = [_layer_before(*each) for each in noted_layers]
    return twin


def _layer_before(layer: Any, length: int | None, others: dict[str, tuple[int, int]]) -> Any:
    """A layer of a cache as it was.

    Keys and values grow at their end, or fill memory allocated in advance.
    """
    more = [name for name, is_now in _others(layer).items() if is_now[1] < 0 or others.get(name) != is_now]
    if more:
        raise UserError(f"its cache keeps more than keys and values ({more[0]})", "stop at its enter")
    twin = copy.copy(layer)
    if getattr(layer, "keys", None) is None:
        return twin
    if length is None:
        twin.keys = twin.values = None
        twin.is_initialized = False
    else:
        _cut_keys(layer, twin, length)
    for name in ("cumulative_length", "cumulative_length_int"):
        count = getattr(layer, name, None)
        if count is not None:
            setattr(twin, name, torch.full_like(count, length or 0) if is_tensor(count) else length or 0)
    return twin


def _cut_keys(layer: Any, twin: Any, length: int) -> None:
    room, seen = layer.keys.shape[-2], int(layer.get_seq_length())
    is_window = getattr(layer, "sliding_window", None) is not None
    if is_window and seen > length and seen > room:
        raise UserError("its cache keeps a window only, and has dropped keys it had", "stop at its enter")
    for name in ("keys", "values"):
        tensor = getattr(layer, name)
        if hasattr(layer, "max_cache_len"):  # allocated in advance, with zeros
            tensor = tensor.detach().clone()
            tensor[..., length:, :] = 0
        elif seen > length:
            tensor = tensor[..., : room - (seen - length), :]
        setattr(twin, name, tensor)


class CacheBefore:
    """Replaces a cache: `update` returns what it returned in the call, and appends to nothing."""

    def __init__(self, cache: Any, progress: CallProgress, length: int) -> None:
        self._cache = cache
        self._progress = progress
        self._length = length

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # models test the kind of their cache with isinstance
        return type(self._cache)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._cache, name)
        if is_cache(value):  # cross-attention is about another sequence, and does not grow
            return CacheBefore(value, self._progress, 0 if name == "cross_attention_cache" else self._length)
        return copy.copy(value) if isinstance(value, dict | list) else value

    def get_seq_length(self, *args: Any, **kwargs: Any) -> int:
        if self._progress is CallProgress.DURING:
            raise UserError(
                "the length of its cache is not known in the middle of a call",
                "stop at its enter or exit",
            )
        length = int(self._cache.get_seq_length(*args, **kwargs))
        return length - self._length if self._progress is CallProgress.AFTER else length

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *rest: Any, **more: Any
    ) -> tuple[Any, Any]:
        layers = self._cache.layers
        layer = layers[layer_idx] if layer_idx < len(layers) else None
        if layer is None or getattr(layer, "keys", None) is None:
            if self._progress is CallProgress.AFTER:
                raise UserError("its cache was emptied since", "stop at the module itself")
            return keys, values
        seen = int(layer.get_seq_length())
        if self._progress is CallProgress.BEFORE or not _ends_in(layer.keys, keys, seen):
            if self._progress is CallProgress.AFTER:
                raise UserError("its cache has gone on since", "stop at the module itself")
            return _updated(layer, keys, values, rest, more)
        if seen <= layer.keys.shape[-2]:
            return layer.keys, layer.values
        if seen == keys.shape[-2]:
            return keys, values
        raise UserError("its cache keeps a window only, and has dropped keys it had", "stop at its enter")


def _ends_in(stored: Tensor, keys: Tensor, seen: int) -> bool:
    """Are these the newest stored keys? The last digits may differ: another kernel may have made them."""
    end = min(seen, stored.shape[-2])
    count = min(end, keys.shape[-2])
    newest, given = stored[..., end - count : end, :], keys[..., keys.shape[-2] - count :, :]
    if not count or newest.shape != given.shape:
        return False
    with below_everything():  # no mode may take this for an op of the model
        return torch.allclose(newest.float(), given.float(), rtol=1e-2, atol=1e-4, equal_nan=True)


def _updated(layer: Any, keys: Tensor, values: Tensor, rest: Any, more: Any) -> tuple[Any, Any]:
    """The call has not reached the cache yet: update a copy of the layer."""
    twin = copy.copy(layer)
    twin.__dict__.update(
        {name: item.detach().clone() for name, item in layer.__dict__.items() if is_tensor(item)}
    )
    after: tuple[Any, Any] = twin.update(keys, values, *rest, **more)
    return after
