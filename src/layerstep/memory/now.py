"""Memory without measuring anything: what models and optimizers keep, and what else is alive."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from layerstep._torch.saved import key_of
from layerstep.memory.owned import KEPT, add_once, kept_by
from layerstep.side_effects.random_streams import RandomState
from layerstep.tensors.autograd_graph import inner_tensors, size_of

if TYPE_CHECKING:
    from layerstep.engine.session import Session
    from layerstep.module_paths.models import Models
    from layerstep.training_steps.steps import Steps

__all__ = ["KEPT", "Now", "add_once", "live_tensors", "look", "look_at"]


@dataclass(frozen=True, slots=True)
class Now:
    """Bytes by kind and path. Memory that two share counts once, for the first."""

    kinds: dict[str, dict[str, int]] = field(default_factory=dict)
    others: int = 0
    """Bytes in all other tensors that Python knows of."""
    other_tensors: int = 0

    def total(self, kind: str) -> int:
        return sum(self.kinds.get(kind, {}).values())

    @property
    def paths(self) -> list[str]:
        return list(dict.fromkeys(path for by_path in self.kinds.values() for path in by_path))


def look(session: Session) -> Now:
    return look_at(session.run.models, session.run.training)


def look_at(models: Models, training: Steps | None = None) -> Now:
    """What is alive now."""
    seen: set[int] = set()
    kinds = kept_by(models, training, seen)
    others = Counter[int]()
    for tensor in live_tensors():
        for part in inner_tensors(tensor):
            key = key_of(part)
            if key and key not in seen:
                others[key] = size_of(part)
    return Now(kinds, sum(others.values()), sum(size > 0 for size in others.values()))


def live_tensors() -> list[Tensor]:
    """Every tensor that Python knows of; measured: 40 ms for 165,000 objects."""
    everything = gc.get_objects()
    ours = {id(value) for thing in everything if type(thing) is RandomState for value in _held_by(thing)}
    return [thing for thing in everything if issubclass(type(thing), Tensor) and id(thing) not in ours]


def _held_by(streams: RandomState) -> Iterable[object]:
    """Our own copy of the random streams, which does not count."""
    for value in vars(streams).values():
        yield value
        if isinstance(value, list | tuple):
            yield from value
