"""One write to a watched tensor, as it is shown: by whom, where, and what it did."""

from __future__ import annotations

from dataclasses import dataclass
from types import FrameType

from torch import Tensor
from torch.optim import Optimizer
from torch.optim import optimizer as optimizer_module

from layerstep._torch import current_node
from layerstep.calls.operations import Place, place_of
from layerstep.process.frames import forget_locals
from layerstep.watchpoints.watchpoint import Change, Watchpoint, change_between

__all__ = ["UNSEEN", "Write", "write_to"]

UNSEEN = "by something that torch does not see: numpy, another thread, compiled code, a collective"


@dataclass(frozen=True, slots=True)
class Write:
    """A watched tensor is not what it was."""

    point: Watchpoint
    kind: str
    """written; replaced: it has other memory; given, dropped: a gradient that was, that is None; unseen."""
    op: str
    """The kernel; empty where none did it."""
    place: Place
    before: Tensor | None
    after: Tensor | None
    change: Change | None
    since: str
    """Of what no kernel did: where the tensor was still as before."""
    optimizer: str
    called_at: Place
    """The line that called the optimizer."""
    node: str
    """The autograd node that runs, in the backward pass."""


def write_to(point: Watchpoint, kind: str, frame: FrameType, *, op: str = "", since: str = "") -> Write:
    """Compare a watched tensor with how it was, and take what it is now as known."""
    before, after, _ = point.compare()
    change = None
    if before is not None and after is not None and before.shape == after.shape:
        change = change_between(before, after, point.steps)
    node = current_node()
    optimizer, called_at = _stepping(frame)
    write = Write(
        point,
        kind,
        op=op,
        place=place_of(frame),
        before=before,
        after=after,
        change=change,
        since=since,
        optimizer=optimizer,
        called_at=called_at,
        node=node.name().rpartition("::")[2] if node is not None else "",
    )
    who = op or write.node
    point.last = (f"{who} at " if who else f"{kind}, found at ") + write.place.name
    point.look()
    return write


def _stepping(frame: FrameType | None) -> tuple[str, Place]:
    """The optimizer whose `step` runs here, and the line that called it: torch wraps each in a `wrapper`."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename == optimizer_module.__file__ and code.co_name == "wrapper":
            found = frame.f_locals.get("self")
            forget_locals(frame)
            if isinstance(found, Optimizer):
                return type(found).__name__, place_of(frame.f_back)
        frame = frame.f_back
    return "", Place()
