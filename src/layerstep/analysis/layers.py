"""The layers in view: modules of a WHERE whose inputs and outputs are at hand at this stop."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from layerstep.engine.session import Session
from layerstep.engine.where import Where
from layerstep.errors import UserError

__all__ = ["Layer", "layers_in_view"]


class Layer(NamedTuple):
    """A module call that was kept: passed by a step, a stop or a recording in this forward."""

    path: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any


def layers_in_view(session: Session, where: str) -> list[Layer]:
    """The kept calls of the modules that a WHERE means, in the order of the model."""
    found = Where.parse(where).look_up(session.models)
    layers = [
        Layer(path, module, *call) for path, module in found if (call := session.kept.get(module)) is not None
    ]
    if not layers:
        raise UserError(
            f"nothing of {where} is in view: none of its {len(found)} modules was passed in this forward",
            f"`record {where} --tensors` before the forward, or step over them",
        )
    return layers
