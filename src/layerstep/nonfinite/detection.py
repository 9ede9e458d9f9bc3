"""Anomaly detection for programs: the first NaN or Inf of each step, with the operation and line it came of.

with layerstep.anomaly_detection(model) as found:
    train()
print(found.findings)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from layerstep.nonfinite.origin import Origin

__all__ = ["Anomaly", "Detection"]


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

    def add(self, origin: Origin) -> None:
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
