"""The losses that a program computes while it evaluates a model.

They are seen where a model returns its loss, where a loss module is called, and where a loss function of
torch is. A loss that is written out by hand is not seen. Training is not listened to: its losses are those
that `backward()` begins at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from layerstep._torch import is_tracing
from layerstep._torch.loss_functions import LossFunctions
from layerstep._torch.tensors import is_tensor
from layerstep.tensors.observing import observing

__all__ = ["EvaluationLosses"]

MOST = 4096
"""Losses of one evaluation that are kept."""


class EvaluationLosses:
    """Notes losses from the first call of an evaluation on, until they are taken."""

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._functions = LossFunctions(self._function_called)
        self._seen: list[tuple[str, float]] = []
        """The kind of each loss, and its value."""
        self._mark = 0

    def listen(self, *, wanted: bool) -> None:
        """An evaluation has begun, or is over. Compiled code would be compiled again: it is let alone."""
        self._functions.listen(wanted=wanted)
        if not wanted:
            self._seen.clear()

    def module_begins(self) -> None:
        """A model or a loss module is called: what functions give inside it may be its own loss."""
        self._mark = len(self._seen)

    def module_gave(self, module: nn.Module, loss: Any) -> None:
        """It has returned a loss. The functions that it has called were a part of it; a loss module of torch
        is nothing else than its function.
        """
        value, inside = _number(loss), self._seen[self._mark :]
        is_torchs = type(module).__module__.startswith("torch.nn.") and len(inside) == 1
        if value is not None and not is_torchs and [value] != [each for _, each in inside]:
            self._seen[self._mark :] = [(type(module).__name__, value)]

    def _function_called(self, kind: str, result: Any, summed: int) -> None:
        if torch.is_grad_enabled() or is_tracing():
            return
        try:
            with observing():
                value = _number(result)
            if value is not None and len(self._seen) < MOST:
                self._seen.append((kind, value / max(summed, 1)))
        except Exception as error:
            self._failed(error)

    def take(self, kind: str) -> float | None:
        """The mean of the losses of this kind; of all, if they are of one other kind. A training that adds up
        several has no kind: then it is the sum of the means of each. None if unclear.
        """
        seen, self._seen = self._seen, []
        kinds = {each for each, _ in seen}
        wanted = {kind} & kinds or (kinds if not kind or len(kinds) == 1 else set())
        means = [_mean([value for each, value in seen if each == one]) for one in wanted]
        return sum(means) if means else None


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _number(value: Any) -> float | None:
    is_loss = is_tensor(value) and value.numel() == 1 and value.is_floating_point()
    return float(value) if is_loss else None
