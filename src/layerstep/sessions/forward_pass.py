"""One forward, layer by layer: what goes into each module, what comes out, and how long it takes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from layerstep.calls.events import Phase
from layerstep.calls.stack import Frame
from layerstep.config import load_config
from layerstep.engine.points import Record
from layerstep.engine.session import Session
from layerstep.module_paths.where import Where
from layerstep.sessions.tensor_record import TensorRecord, look_at, record_fields
from layerstep.tensors.shapes import tensors_in

__all__ = ["LayerOutput", "call", "call_watched"]

MOST_LAYERS = 2000
"""Outputs of one forward that are kept."""


@dataclass(frozen=True, slots=True)
class LayerOutput(TensorRecord):
    """What came out of a module in one call."""

    input_shape: tuple[int, ...] = ()
    """Of the first tensor that the module was given."""
    seconds: float = 0.0
    """Of the call, with the modules inside. About 15 µs of each call are the debugger's."""


def call(model: nn.Module, inputs: Any) -> Any:
    """Call a model: a tuple is its arguments, a dictionary its keywords."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def call_watched(model: nn.Module, inputs: Any) -> tuple[Any, list[LayerOutput]]:
    """Call a model; its output, and that of each module."""
    session, seen = Session(config=load_config()), _Layers()
    session.add_model(model)
    for phase, action in ((Phase.ENTER, seen.entered), (Phase.EXIT, seen.left)):
        point = session.points.add(
            Record(Where.parse("**"), phase=phase, action=action, set_by="debug_forward_pass")
        )
        session.intake.set_or_leave_pending(point)
    session.attach()
    try:
        return call(model, inputs), seen.outputs
    finally:
        session.detach()


class _Layers:
    def __init__(self) -> None:
        self.outputs: list[LayerOutput] = []
        self._begun: dict[int, list[float]] = defaultdict(list)
        """By module, the calls that are running; one may call itself."""
        self._own = 0.0
        """Seconds of looking at outputs so far, which are in no time."""

    def _now(self) -> float:
        return time.perf_counter() - self._own

    def entered(self, frame: Frame) -> None:
        self._begun[id(frame.module)].append(self._now())

    def left(self, frame: Frame) -> None:
        now = self._now()
        begun = self._begun[id(frame.module)]
        seconds = now - begun.pop() if begun else 0.0
        if len(self.outputs) < MOST_LAYERS:
            self._note(frame, seconds)
        self._own += self._now() - now

    def _note(self, frame: Frame, seconds: float) -> None:
        path = frame.path.partition("|")[0]
        given = [tuple(tensor.shape) for _, tensor in tensors_in((frame.args, frame.kwargs), most=1)]
        for place, tensor in tensors_in(frame.output, most=1):
            fields = record_fields(look_at(tensor), f"{path}{place}", layer=path, operation="forward")
            shape = given[0] if given else ()
            self.outputs.append(LayerOutput(**fields, input_shape=shape, seconds=seconds))
