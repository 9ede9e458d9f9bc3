"""A few elements of each parameter as they were when the training began: what has moved since?"""

from __future__ import annotations

import weakref
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from layerstep._torch.tensors import version_of
from layerstep.doctor.loose_parameters import LooseParameters
from layerstep.doctor.measuring import is_readable
from layerstep.gradients.recorder import named_parameters
from layerstep.gradients.sizes import is_plain

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Traces"]

ELEMENTS = 256
_HALF = (torch.float16, torch.bfloat16)


class _Trace(NamedTuple):
    """A parameter at the beginning. Its name stays when the run finds another model."""

    name: str
    parameter: weakref.ref[Tensor]
    version: int
    values: Tensor | None


class Traces:
    """Tells which parameters nothing has written to."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.loose = LooseParameters(session)
        self._first: dict[int, _Trace] = {}

    def look(self, loss: Tensor, frame: FrameType) -> None:
        """A backward pass is about to begin: does its loss have parameters that no model knows of?"""
        self.loose.look(loss, (each.parameter for each in named_parameters(self._session)), frame)

    def update(self) -> list[tuple[str, Tensor]]:
        """Every parameter of every model, by name, and those that it does not know of; new ones are noted as
        they are now.
        """
        found = []
        named = [(each.name, each.parameter) for each in named_parameters(self._session)]
        for name, parameter in (*named, *self.loose.named(), *self.loose.variables()):
            known = self._first.get(id(parameter))
            if known is None or known.parameter() is not parameter:
                known = self._first[id(parameter)] = _Trace(
                    name, weakref.ref(parameter), version_of(parameter), _some(parameter)
                )
            found.append((known.name, parameter))
        return found

    def is_untouched(self, parameter: Tensor) -> bool:
        """Has nothing written to it? A write through `.data` does not count its version."""
        known = self._first.get(id(parameter))
        if known is None or known.version < 0 or known.version != version_of(parameter):
            return False
        now = _some(parameter)
        return now is not None and known.values is not None and torch.equal(now, known.values)

    def stuck(self, parameter: Tensor) -> float:
        """Of half precision: the share of the elements with a gradient that have their first value."""
        known = self._first.get(id(parameter))
        if parameter.dtype not in _HALF or known is None or known.values is None or parameter.grad is None:
            return 0.0
        now, gradient = _some(parameter), _some(parameter.grad)
        if now is None or gradient is None or now.shape != gradient.shape or now.shape != known.values.shape:
            return 0.0
        has_gradient = gradient != 0
        count = int(has_gradient.sum())
        return float(((now == known.values) & has_gradient).sum()) / count if count else 0.0


def _some(tensor: Tensor) -> Tensor | None:
    if not is_plain(tensor) or not is_readable(tensor):
        return None
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, -(-flat.numel() // ELEMENTS))].clone()
