"""Which checkpoints are kept: 1, 2, 4, 8 … back, so that few of them reach far."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["superfluous"]


def superfluous(steps: Sequence[int], *, every: int, keep: int) -> int | None:
    """The index of the one to drop, in a list from the oldest to the newest; None if all may stay.

    The newest stays. Of the others, one goes whose absence makes the smallest gap, measured by how far back
    it is; the oldest goes when it is further back than doubling from one to the next would reach.
    """
    if len(steps) <= keep:
        return None
    now = steps[-1]
    if keep == 1 or (now - steps[0]) / every > 2 ** (keep - 1):
        return 0
    gaps = [
        ((steps[place + 1] - steps[place - 1]) / (now - steps[place - 1]), place)
        for place in range(1, len(steps) - 1)
    ]
    return min(gaps)[1]
