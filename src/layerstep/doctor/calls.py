"""Does a gradient pass? What each module without children was given and gave, in a step that is looked at."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from layerstep.doctor.facts import CallFacts
from layerstep.doctor.measuring import is_readable
from layerstep.module_paths.models import Models
from layerstep.tensors.containers import tensors_of

__all__ = ["Calls", "leaves_of"]

MOST = 2000
"""Calls of a step that are kept."""


def leaves_of(models: Models) -> tuple[list[tuple[str, nn.Module]], list[nn.Module]]:
    """The modules without children by their paths, and their models; not those of compiled ones."""
    plain = [model for model in models if not model.compiled]
    leaves = {
        id(module): (models.full_path(model, path), module)
        for model in plain
        for path, module in model.names
        if next(module.children(), None) is None and not isinstance(module, nn.TransformerEncoderLayer)
    }
    return list(leaves.values()), [model.root for model in plain if model.root is not None]


class Calls:
    """Follows the calls of one step. It keeps addresses of tensors and no tensor."""

    def __init__(self) -> None:
        self._calls: list[CallFacts] = []
        self._made: dict[int, str] = {}
        """The modules whose output requires a gradient, by the address of the output."""
        self._fed: set[int] = set()
        self._is_open = False

    def take(self) -> tuple[CallFacts, ...]:
        """The calls since they were taken last."""
        taken, self._calls = tuple(self._calls), []
        self._made, self._fed = {}, set()
        return taken

    def model_called(self, args: Any, kwargs: Any, *, with_grad: bool) -> None:
        """An outermost module begins. What it does without gradients is an evaluation."""
        self._is_open = with_grad
        self._fed = {_address(each) for each in tensors_of((args, kwargs))}

    def note(self, path: str, args: Any, kwargs: Any, output: Any, *, with_grad: bool) -> None:
        """A module without children was called."""
        if not self._is_open or len(self._calls) >= MOST:
            return
        given = [each for each in tensors_of((args, kwargs)) if is_readable(each)]
        made = [each for each in tensors_of(output) if is_readable(each)]
        cut = (self._made.get(_address(each), "") for each in given if not each.requires_grad)
        self._calls.append(
            CallFacts(
                path,
                with_grad,
                takes=any(each.requires_grad for each in given),
                gives=any(each.requires_grad for each in made),
                cut_from=next(filter(None, cut), ""),
                is_fed=any(_address(each) in self._fed for each in given),
            )
        )
        self._made.update({_address(each): path for each in made if each.requires_grad})


def _address(tensor: Tensor) -> int:
    return tensor.data_ptr() if is_readable(tensor) else 0
