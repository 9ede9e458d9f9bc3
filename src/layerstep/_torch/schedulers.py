"""What a learning-rate scheduler keeps to itself. Seen on torch 2.13.0."""

from __future__ import annotations

from typing import Any

from torch.optim.lr_scheduler import LRScheduler

__all__ = ["parts_of_scheduler", "times_stepped"]


def parts_of_scheduler(scheduler: LRScheduler) -> list[Any]:
    """The schedulers that a chained or sequential one steps. Fallback: none, and each counts separately."""
    return list(getattr(scheduler, "_schedulers", ()))


def times_stepped(scheduler: LRScheduler) -> int:
    """How often `step()` was called; its constructor does it once. Fallback: once."""
    return int(getattr(scheduler, "_step_count", 1))
