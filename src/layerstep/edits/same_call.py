"""The same call once more: what `set` has replaced in it is replaced there, too.

Activation checkpointing runs the call again in the backward pass, and `back` and `restart` run the forward
again. Without this, the first would give silently wrong gradients, and the second would lose the value.
"""

from __future__ import annotations

from layerstep._torch import NO_BACKWARD, graph_task
from layerstep.calls.events import Event
from layerstep.calls.stack import Frame
from layerstep.edits.acting import Make, Occasion, fingerprint
from layerstep.engine.run import Run

__all__ = ["SameCall"]

FORWARDS = 8
"""So many forwards may wait for their backward."""


class SameCall:
    """Acts where a call has the values that it had when one of them was set."""

    def __init__(self, run: Run, event: Event, make: Make, *, forward: int) -> None:
        self._run = run
        self._make = make
        self._values = fingerprint(event)
        self._forward, self._restarts = forward, run.restarts
        self.done, self.why_not = 0, ""

    def __call__(self, event: Event, place: Frame) -> Event | None:
        is_again = graph_task() != NO_BACKWARD or (
            self._run.restarts > self._restarts and self._now(event) == self._forward
        )
        if not is_again or fingerprint(event) != self._values:
            return None
        return self._make(Occasion(event, place, 0))

    def is_over(self, event: Event) -> bool:
        """Can the call no longer run again?"""
        return self._now(event) > self._forward + FORWARDS

    def _now(self, event: Event) -> int:
        owner = self._run.models.owner_of(event.module)
        return owner.forwards if owner is not None else 0
