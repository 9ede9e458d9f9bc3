"""Gradients that grow without bounds."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from layerstep.doctor.depth import Depth, depth_of
from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.doctor.series import median
from layerstep.registry import rule

__all__ = ["ExplodingGradients"]

HUGE = 1e3
DEEP = 1e3
GROWN = 100.0
FASTER = 10.0
LOOKS = 8
STEPS = 20


@rule("R15", "exploding-gradients", severity="error", confidence="statistical", cost="always")
class ExplodingGradients(Rule):
    """The gradients grow from layer to layer, or from step to step, and the loss gets worse.

    Why: large gradients make large steps, and large steps make even larger gradients. The size alone says
    little: a loss that is a sum over a large batch has large gradients and may train well.

    How to fix: lower the learning rate, clip the gradients, and see whether the initial weights are too
    large. In a recurrent network, always clip.
    """

    advice = (
        "lower the learning rate",
        "clip: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) before each step",
        "see whether the initial weights are too large",
    )
    explains = ("diverging", "non-finite", "loss-spike", "not-learning", "dead-units", "saturated-units")

    def __init__(self) -> None:
        self._depths: dict[int, deque[Depth]] = {}
        self._largest: dict[int, str] = {}

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        yield from self._from_the_beginning(step, run)
        yield from self._in_depth(step, run)
        if step.is_looked_at:
            yield from self._in_time(step, run)

    def _from_the_beginning(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        """Huge at the first step already, and the loss does not survive it."""
        mine = run.optimizer(step.optimizer)
        if step.number == 1 and step.is_looked_at and (step.grad_norm or 0.0) > HUGE:
            self._largest[step.optimizer] = max(step.parameters.items(), key=lambda each: each[1].norm)[0]
        name = self._largest.get(step.optimizer)
        if name is None or not 1 < step.number <= STEPS or step.loss is None or not mine.loss.first:
            return
        first = mine.loss.first[0][1]
        if not math.isfinite(step.loss) or step.loss > 2 * first > 0:
            norm = mine.grad_norm.first[0][1]
            yield Sign(
                f"the gradient of {name} is huge from the beginning: all together have a norm of {norm:.3g}",
                Place((name,)),
                {"gradient norm": norm, "loss at first": first, "loss": step.loss},
            )

    def _in_depth(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        seen = self._depths.setdefault(step.optimizer, deque(maxlen=LOOKS))
        depth = depth_of(step, run) if step.is_looked_at else None
        if depth is not None:
            seen.append(depth)
        if step.number % STEPS and depth is None:
            return
        ratio = median([each.ratio for each in seen])
        if len(seen) == LOOKS and step.number >= STEPS and ratio > DEEP and all(map(_rises, seen)):
            yield Sign(
                f"the gradients of the first layers are {ratio:.2g} times those of the last",
                Place(seen[-1].names[: len(seen[-1].names) // 3]),
                {"norms from input to output": seen[-1].norms},
            )

    def _in_time(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        mine = run.optimizer(step.optimizer)
        norms = mine.grad_norm.tail(4)
        if len(norms) < 3 or not len(mine.loss):
            return
        losses = mine.loss.head(5)
        worse = not mine.loss.last < 1.5 * max(losses, default=0.0)
        jumps = norms[-1] > FASTER * norms[-2] > FASTER * FASTER * norms[-3] and norms[-1] > 10
        usual = median(mine.grad_norm.head(5))
        grown = mine.grad_norm.count >= LOOKS and min(norms) > GROWN * usual and min(norms) > 10
        if worse and (jumps or grown):
            begin = norms[0] if jumps else usual
            yield Sign(
                f"the norm of the gradients has grown from {begin:.3g} to {norms[-1]:.3g}",
                Place(module=step.kind),
                {"gradient norm": tuple(norms), "loss": mine.loss.last},
            )


def _rises(depth: Depth) -> bool:
    return depth.first > 3 * depth.middle > 9 * depth.last
