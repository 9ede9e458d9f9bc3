"""Anomaly detection for programs: the first NaN or Inf of each step, with the operation and line it came of.

with layerstep.anomaly_detection(model) as found:
    train()
print(found.findings)
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import nn

from layerstep.commands.catch import catch_not_finite
from layerstep.config import is_disabled
from layerstep.frontends.choose import open_session
from layerstep.nonfinite.catching import hunt_of
from layerstep.nonfinite.origin import Origin

__all__ = ["Anomaly", "Detection", "anomaly_detection"]


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A value that was not finite: where it was born."""

    kind: str
    """`nan` or `inf`."""
    part: str
    """`forward`, `loss`, `backward` or `optimizer step`."""
    layer: str
    op: str
    file: str
    line: int
    forward: int
    message: str

    def __str__(self) -> str:
        at = f" at {self.file}:{self.line}" if self.file else ""
        return f"{self.message}; born in {self.op or 'an operation that was not found'}{at}"


@dataclass(slots=True)
class Detection:
    """What a block of detection has found so far."""

    findings: list[Anomaly] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.findings)

    def _add(self, origin: Origin) -> None:
        self.findings.append(
            Anomaly(
                kind="inf" if "inf" in origin.seen and not origin.bad.nan else "nan",
                part=origin.part.value,
                layer=origin.path,
                op=origin.op,
                file=origin.place.file,
                line=origin.place.line,
                forward=origin.forward,
                message=origin.seen + (f"; {origin.note}" if origin.note else ""),
            )
        )


@contextlib.contextmanager
def anomaly_detection(model: nn.Module | None = None, *, stop: bool = False) -> Iterator[Detection]:
    """Watch for NaN and Inf in forward, loss and backward; without a model, in every model that is called.

    `stop` opens the debugger at each instead of going on. Nothing is raised and nothing changes in the run; a
    healthy step costs one sum of its output, its loss and its gradients.
    """
    found = Detection()
    if is_disabled():
        yield found
        return
    session, _ = open_session(batch=not stop, output=None if stop else io.StringIO())
    if model is not None:
        session.add_model(model)
    session.attach(discover=model is None)
    try:
        point = catch_not_finite(session, "nonfinite")
        hunt_of(session).listeners.append(found._add)
        point.commands = () if stop else ("silent", "continue")
        yield found
    finally:
        session.detach()
        session.close()
