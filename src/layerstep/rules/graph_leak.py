"""Graphs of earlier steps that are kept alive."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["GraphLeak"]

FEWEST = 24


@rule("R22", "graph-leak", severity="warning", cost="always")
class GraphLeak(Rule):
    """The graph of each step is kept alive after it, so memory grows.

    Why: a loss or an output that is stored keeps the whole graph behind it. `losses.append(loss)` and `total
    += loss` do that.

    How to fix: store the number: `loss.item()`, or `loss.detach()`.
    """

    advice = ("store loss.item() or loss.detach() instead of the tensor",)
    patience = 2

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        if not step.live_graphs or step.live_graphs < FEWEST or step.held_by is None:
            return
        holder, file, line = step.held_by
        yield Sign(
            f"the graphs of {step.live_graphs} earlier steps are alive, held by {holder}",
            Place(file=file, line=line),
            {"graphs": step.live_graphs},
        )
