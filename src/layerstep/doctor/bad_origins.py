"""The line where a value stopped being finite: the last call of the model is run again, watched, once.

The run itself is not watched for that. Its inputs are only known weakly: they are alive at `backward()` if
the program still holds them. A second run draws other random numbers for dropouts; what a dropout alone has
made is not found again.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from layerstep._torch.tensors import is_tensor, size_of
from layerstep.doctor.finding import Place
from layerstep.nonfinite.bad_nodes import Nodes
from layerstep.nonfinite.in_backward import Passed, again_backward, origin_of_node
from layerstep.nonfinite.in_forward import look_forward, origin_of_link
from layerstep.nonfinite.origin import Origin
from layerstep.rerun.other_ranks import waits_for_ranks
from layerstep.rerun.whole_call import CallStart, note_start, rerunning
from layerstep.tensors.containers import tensors_of
from layerstep.tensors.finite import is_finite

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["BadOrigins", "Born"]

MOST_BYTES = 1 << 30
"""Of parameters and inputs: a larger model is not run again unasked."""


class Born(NamedTuple):
    """Where a value that is not finite was made."""

    words: str
    """`log gave -inf`."""
    where: Place
    """The module and the line of the program."""


class _Call(NamedTuple):
    module: weakref.ref[nn.Module]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    autocast: Mapping[str, torch.dtype]


class BadOrigins:
    """Knows the last training call, and runs it again at most once for each direction."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._call: _Call | None = None
        self._left = {"forward", "backward"}

    def called(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        autocast: Mapping[str, torch.dtype],
    ) -> None:
        """A model is called with gradients."""
        try:
            self._call = _Call(weakref.ref(module), _weakly(args), _weakly(kwargs), autocast)
        except TypeError:
            self._call = None

    def in_forward(self) -> Born | None:
        """The loss is not finite, parameters and inputs are: was it born in the model?"""
        start = self._start("forward")
        if start is None:
            return None
        verdict = look_forward(self._session, start, start.module, wanted=lambda each: not is_finite(each))
        if not verdict.chain or verdict.intended:
            return None
        return self._born(origin_of_link(self._session, verdict.chain, seen="", forward=0))

    def in_backward(self) -> Born | None:
        """Gradients are not finite, the loss is. Gradients of one stand for those of the loss."""
        start = self._start("backward")
        if start is None:
            return None
        with rerunning(self._session, start):
            args, kwargs = start.arguments()
            made = tensors_of(start.module(*args, **kwargs))
        ones = {place: torch.ones_like(each) for place, each in enumerate(made) if each.requires_grad}
        watching: list[Nodes] = []
        nodes, ledger, _ = again_backward(
            self._session, Passed(start, set(), gradients=ones), watching=watching
        )
        blamed = nodes.producer()
        if blamed is None:
            return None
        return self._born(origin_of_node(self._session, blamed, ledger, seen="", forward=0))

    def _born(self, origin: Origin) -> Born:
        words = f"{origin.op} gave {origin.bad}" if origin.bad.any else origin.op
        if origin.source:
            words = f"{words}, from {origin.source}"
        return Born(words, Place(module=origin.path, file=origin.place.file, line=origin.place.line))

    def _start(self, direction: str) -> CallStart | None:
        """The last call as it was, if it may be run again."""
        call = self._call
        if call is None or direction not in self._left:
            return None
        self._left.discard(direction)
        module = call.module()
        try:
            args, kwargs = _strongly(call.args), _strongly(call.kwargs)
        except LookupError:
            return None
        if (
            module is None
            or waits_for_ranks(module)
            or any(each.compiled for each in self._session.run.models)
        ):
            return None
        if sum(size_of(t) or 0 for t in (*module.parameters(), *tensors_of((args, kwargs)))) > MOST_BYTES:
            return None
        start = note_start(module, args, kwargs, forward=0, inside=list(module.modules()))
        return replace(start, grad=True, autocast=list(call.autocast.items()))


_PLAIN = (int, float, str, bool, complex, bytes, type(None), torch.dtype, torch.device)


def _weakly(value: Any) -> Any:
    """The same containers with weak references for tensors. Raises TypeError for anything else."""
    if is_tensor(value):
        return weakref.ref(value)
    if type(value) in (tuple, list):
        return type(value)(_weakly(each) for each in value)
    if isinstance(value, dict):
        return {key: _weakly(each) for key, each in value.items()}
    if not isinstance(value, _PLAIN):
        raise TypeError(type(value).__name__)
    return value


def _strongly(value: Any) -> Any:
    """What `_weakly` was given. Raises LookupError if a tensor is gone."""
    if isinstance(value, weakref.ref):
        found = value()
        if found is None:
            raise LookupError
        return found
    if isinstance(value, tuple | list):
        return type(value)(_strongly(each) for each in value)
    if isinstance(value, dict):
        return {key: _strongly(each) for key, each in value.items()}
    return value
