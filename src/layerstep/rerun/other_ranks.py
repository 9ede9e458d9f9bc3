"""Other ranks: the collectives that values come through, and the modules that wait for them."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from torch import nn

from layerstep._torch.collectives import BeforeCollectives
from layerstep.errors import UserError

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["about_gradients", "about_source", "has_ranks", "no_collectives", "waits_for_ranks"]

_REDUCERS = {
    "DistributedDataParallel": "the all-reduce of gradients by DistributedDataParallel",
    "FullyShardedDataParallel": "the reduce-scatter of gradients by FullyShardedDataParallel",
    "FSDPModule": "the reduce-scatter of gradients by FSDP",
}


def has_ranks() -> bool:
    """Is this process one of several that talk to each other?"""
    found: Any = sys.modules.get("torch.distributed")
    return bool(found and found.is_available() and found.is_initialized() and found.get_world_size() > 1)


def about_gradients(session: Session) -> str:
    """Why gradients can be bad though this rank made good ones; "" if there is no other rank."""
    if not has_ranks():
        return ""
    return (
        "the gradients that this rank makes are finite: it came from another rank, through "
        f"{_reducer(session) or 'a collective'}"
    )


def about_source(session: Session, source: str) -> str:
    """The same for a parameter or a buffer that a forward has read."""
    if not has_ranks() or not source.startswith(("parameter", "buffer")):
        return ""
    if source.startswith("parameter"):
        return f"another rank may have made it: gradients come through {_reducer(session) or 'collectives'}"
    if any(getattr(model.given, "broadcast_buffers", False) for model in session.run.models):
        return "it may come from rank 0: DistributedDataParallel broadcasts its buffers before each forward"
    return ""


def _reducer(session: Session) -> str:
    given = [model.given for model in session.run.models if model.given is not None]
    kinds = [base.__name__ for module in given for base in type(module).__mro__]
    return next((_REDUCERS[kind] for kind in kinds if kind in _REDUCERS), "")


def waits_for_ranks(module: nn.Module) -> str:
    """The class of a part that talks to other ranks; run on this rank alone, it would wait for ever."""
    if not has_ranks():
        return ""
    for part in module.modules():
        names = {base.__name__ for base in type(part).__mro__}
        if names & _REDUCERS.keys() or ("SyncBatchNorm" in names and part.training):
            return type(part).__name__
    return ""


def no_collectives() -> contextlib.AbstractContextManager[object]:
    """Refuse a collective in a rerun before it is begun: the other ranks do not take part in it."""
    return BeforeCollectives(_refuse) if has_ranks() else contextlib.nullcontext()


def _refuse(name: str) -> None:
    raise UserError(f"it cannot be rerun on one rank alone: {name} would wait for the other ranks")
