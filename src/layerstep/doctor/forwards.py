"""Calls of the models: with what they are called, in which mode, and which of them are an evaluation."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from layerstep._torch.tensors import base_of
from layerstep.doctor.divided import ROWS, divided
from layerstep.doctor.facts import EvaluationFacts, ForwardFacts
from layerstep.doctor.finding import Place
from layerstep.doctor.measuring import input_facts
from layerstep.module_paths.by_module import ByModule
from layerstep.module_paths.models import Models
from layerstep.tensors.containers import tensors_of
from layerstep.tensors.shapes import attempt, dtype_name

__all__ = ["Forwards", "autocast_in_use"]

MOST_INPUTS = 6
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
TOKENS = 1 << 20
"""Whole numbers of an input that are copied to be compared with the labels."""
ROWS_OF_EVALUATION = 4096
ROWS_OF_CALL = 512
"""Of one call of an evaluation; of a training call fewer."""


class Forwards:
    """Makes facts of the calls."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._modes: ByModule[list[tuple[str, nn.Module]]] = ByModule()
        self._calls: list[tuple[ForwardFacts, weakref.ref[nn.Module]]] = []
        self._taken = self._calls
        self._tokens: list[Tensor] = []
        self._evaluation: EvaluationFacts | None = None
        self._time_first: set[str] = set()
        """The models whose samples are in the second dimension, as their labels tell."""
        self._given: dict[str, list[tuple[str, weakref.ref[Tensor]]]] = {}

    def begins(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        deep: bool,
        with_grad: bool,
        autocast: torch.dtype | None,
    ) -> ForwardFacts | None:
        """A model is called; None if it is a loss or another helper without parameters.

        Whether gradients and autocast are on is to be asked outside of `observing`, which turns both off.
        """
        model = self._models.by_root(module)
        if model is None or model.is_helper:
            return None
        named = _named(args, kwargs)
        is_same = False
        if with_grad:
            self._tokens = [_copy(t) for _, t in named if _is_tokens(t)] if deep else []
            is_same = self._is_same(model.name, named)
            self._given[model.name] = [(name, weakref.ref(_root(t))) for name, t in named]
        modal, time_first = self._modal(module), model.name in self._time_first
        is_wanted, most = deep or not with_grad, ROWS if with_grad else ROWS_OF_CALL
        found = divided(named, time_first=time_first, most=most) if is_wanted else None
        plain = next((int(t.shape[1 if time_first and t.ndim > 1 else 0]) for _, t in named if t.ndim), 1)
        return ForwardFacts(
            model.name,
            samples=found.count if found is not None else plain,
            is_training=module.training,
            with_grad=with_grad,
            modes=tuple(path for path, part in modal if not part.training)
            if module.training and deep
            else (),
            has_modes=bool(modal),
            inputs=tuple(input_facts(name, t, deep=deep and with_grad) for name, t in named),
            autocast=dtype_name(autocast) if autocast is not None else "",
            is_same_input=with_grad and is_same,
            rows=found.rows if found is not None else (),
            values=found.values if found is not None else 0,
        )

    def _is_same(self, model: str, named: list[tuple[str, Tensor]]) -> bool:
        """Is the first tensor of a call, or what it is a view of, that of the call before?"""
        known = self._given.get(model)
        return known[0][1]() is _root(named[0][1]) if known and named else False

    def given(self) -> list[tuple[str, Tensor]]:
        """What the models were last called with, as far as it is alive."""
        return [
            (f"{name} of {model}" if len(self._given) > 1 else name, tensor)
            for model, known in self._given.items()
            for name, reference in known
            if (tensor := reference()) is not None
        ]

    def note_labels(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """The targets of the last call have these shapes: are its samples in the second dimension?"""
        call = self._calls[-1][0] if self._calls else None
        counts = {shape[0] for shape in shapes if shape}
        given = next((each.shape for each in call.inputs if len(each.shape) >= 2), None) if call else None
        if call is None or given is None or len(counts) != 1:
            return
        count = counts.pop()
        if count == given[0]:
            self._time_first.discard(call.model)
        elif count == given[1] and call.samples == given[0] and len(given) >= 3:
            self._time_first.add(call.model)

    # --- the calls of a step ---

    def add_to_step(self, call: ForwardFacts, module: nn.Module) -> None:
        """A model is called with gradients."""
        self._calls.append((call, weakref.ref(module)))

    def returned(self, output: Any) -> None:
        """The last of these calls has returned this."""
        made = next((t for t in tensors_of(output) if t.is_floating_point()), None)
        if self._calls and made is not None:
            call, reference = self._calls[-1]
            self._calls[-1] = (replace(call, output=input_facts("output", made, deep=True)), reference)

    def take_step(
        self, is_own: Callable[[nn.Module], bool], *, again: bool = False
    ) -> tuple[ForwardFacts, ...]:
        """The calls since they were taken last; `again` gives those of the last time. Whose model it is
        matters only in evaluation mode.
        """
        if not again:
            self._taken, self._calls = self._calls, []
        taken = self._taken
        return tuple(
            call
            if call.is_training or ((module := reference()) is not None and is_own(module))
            else replace(call, is_own=False)
            for call, reference in taken
        )

    # --- what they tell ---

    def tokens(self) -> list[Tensor]:
        """The inputs of whole numbers of the last call with gradients, if it was looked at."""
        return self._tokens

    def _modal(self, root: nn.Module) -> list[tuple[str, nn.Module]]:
        """The modules of a model that act differently in evaluation mode."""
        known = self._modes.get(root)
        if known is not None:
            return known
        modal: list[tuple[str, nn.Module]] = [
            (path, module)
            for path, module in root.named_modules()
            if isinstance(module, _BatchNorm)
            or (isinstance(module, _DROPOUTS) and module.p > 0)
            or (
                isinstance(module, nn.MultiheadAttention | nn.LSTM | nn.GRU)
                and getattr(module, "dropout", 0) not in (0, 0.0)
            )
        ]
        return self._modes.put(root, modal)

    @property
    def is_evaluating(self) -> bool:
        """Was a trained model called without gradients since the last training call?"""
        return self._evaluation is not None

    def add_to_evaluation(
        self, call: ForwardFacts, step: int, line: Place, overlap: tuple[int, int] | None = None
    ) -> None:
        """A trained model is called without gradients."""
        open_ = self._evaluation
        if open_ is None or open_.model != call.model:
            open_ = EvaluationFacts(call.model, step, 0, 0, False, call.has_modes, line=line, overlap=overlap)
        self._evaluation = replace(
            open_,
            forwards=open_.forwards + 1,
            samples=open_.samples + call.samples,
            is_training=open_.is_training or call.is_training,
            rows=(open_.rows + call.rows)[:ROWS_OF_EVALUATION],
        )

    def take_evaluation(self) -> EvaluationFacts | None:
        """The evaluation that has just ended, if there was one."""
        taken, self._evaluation = self._evaluation, None
        return taken


def autocast_in_use() -> dict[str, torch.dtype]:
    """The dtype of autocast on each device where it is on."""
    on = (device for device in ("cuda", "cpu") if torch.is_autocast_enabled(device))
    return {device: torch.get_autocast_dtype(device) for device in on}


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Tensor]]:
    given = [*((f"input {at}", value) for at, value in enumerate(args)), *kwargs.items()]
    return [found for name, value in given for found in _tensors_in(name, value)[:MOST_INPUTS]][:MOST_INPUTS]


def _tensors_in(name: str, value: Any) -> list[tuple[str, Tensor]]:
    """The tensors of an argument; those of a dictionary by their keys, and those of a batch object too."""
    if isinstance(value, Mapping):
        return [(str(key), t) for key, each in value.items() for t in tensors_of(each)]
    found = tensors_of(value)
    if not found and hasattr(value, "__dict__") and not isinstance(value, nn.Module | type):
        return [pair for key, each in vars(value).items() for pair in _tensors_in(key, each)]
    return [(name, t) for t in found]


def _root(tensor: Tensor) -> Tensor:
    """What a tensor is a view of, or itself."""
    base = attempt(lambda: base_of(tensor), None)
    return tensor if base is None else base


def _is_tokens(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.int64, torch.int32) and tensor.ndim == 2 and tensor.numel() <= TOKENS


def _copy(tensor: Tensor) -> Tensor:
    """The program may write to its inputs before the loss is there."""
    return tensor.detach().clone()
