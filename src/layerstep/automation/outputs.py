"""Outputs of layers with a number in place of NaN and Inf: what a tap returns to torch is what goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from layerstep._torch import is_tracing
from layerstep._torch.tensors import is_tensor
from layerstep._torch.trees import tree_map
from layerstep.calls.events import Phase
from layerstep.errors import UnknownPath, UserError
from layerstep.hooks.taps import Sink, Taps
from layerstep.module_paths.where import Where
from layerstep.tensors.containers import tensors_of
from layerstep.tensors.finite import count_bad, is_finite

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["OutputTaps", "modules_of", "without_nonfinite"]

Returned = Callable[[int, str, Any], Any]
"""Is given the number of a hook, the path of the layer and what it returned; what goes on, None for that."""


class OutputTaps:
    """Taps on the layers whose outputs hooks may change."""

    def __init__(self, session: Session, returned: Returned) -> None:
        self._session = session
        self._returned = returned
        self._paths: dict[int, str] = {}
        self._taps = Taps(Sink(self._left, _ignore, _ignore))

    def apply(self, hooks: Iterable[tuple[int, tuple[Where, ...]]]) -> None:
        """Tap the layers of these hooks, each given by its number, and no other layer."""
        found: dict[int, tuple[nn.Module, tuple[int, ...]]] = {}
        self._paths.clear()
        for number, wheres in hooks:
            for path, module in modules_of(self._session, wheres):
                self._paths[id(module)] = path
                _, numbers = found.get(id(module), (module, ()))
                found[id(module)] = (module, (*numbers, number))
        self._taps.apply({key: (module, {Phase.EXIT: numbers}) for key, (module, numbers) in found.items()})

    def _left(
        self,
        phase: Phase,
        numbers: tuple[int, ...],
        module: nn.Module,
        args: Any,
        kwargs: Any,
        output: Any,
        frame: FrameType,
    ) -> Any:
        if self._session.run.is_silent or is_tracing():
            return None
        try:
            value = output
            for number in numbers:
                changed = self._returned(number, self._paths[id(module)], value)
                value = value if changed is None else changed
            return None if value is output else value
        except Exception as error:
            self._session.fail(error)
            return None


def modules_of(session: Session, wheres: Iterable[Where]) -> list[tuple[str, nn.Module]]:
    """The layers that are meant, as far as their model is known."""
    found: dict[int, tuple[str, nn.Module]] = {}
    for where in wheres:
        try:
            found |= {id(module): (path, module) for path, module in where.look_up(session.run.models)}
        except UnknownPath:
            continue
    return list(found.values())


def without_nonfinite(output: Any, value: float) -> tuple[Any, int]:
    """An output with a number in place of NaN and Inf, and how many there were.

    Its gradient is 0 at these places.
    """
    bad = {id(t): count_bad(t) for t in tensors_of(output) if not is_finite(t)}
    if not bad:
        return output, 0
    mended: set[int] = set()

    def mend(leaf: Any) -> Any:
        if not is_tensor(leaf) or id(leaf) not in bad:
            return leaf
        mended.add(id(leaf))
        return torch.nan_to_num(leaf, value, value, value)

    new = tree_map(mend, output)
    if mended != bad.keys():
        raise UserError(f"a tensor in a {type(output).__name__} cannot be replaced")
    return new, sum(each.nan + each.plus + each.minus for each in bad.values())


def _ignore(*_: Any) -> None:
    """Ignore the other reports of a tap."""
