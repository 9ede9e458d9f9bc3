"""The doctor from code: `with watching() as doctor: train()`, then `doctor.findings`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from layerstep.doctor.budget import Level
from layerstep.doctor.finding import Finding
from layerstep.doctor.watching import Doctor
from layerstep.engine.session import Session

__all__ = ["Watch", "watching"]


class Watch:
    """What a block of training has shown."""

    def __init__(self, doctor: Doctor) -> None:
        self.doctor = doctor

    @property
    def findings(self) -> list[Finding]:
        """Causes first, what each explains right behind it."""
        return self.doctor.findings


@contextlib.contextmanager
def watching(level: str = "basic") -> Iterator[Watch]:
    """Watch the training in this block. The models are found as they are called."""
    wanted, session = Level.parse(level), Session()
    session.attach(discover=True)
    doctor = session.instruments.get(Doctor)
    doctor.start(wanted)
    try:
        yield Watch(doctor)
        doctor.finish()
    finally:
        session.detach()
        session.close()
