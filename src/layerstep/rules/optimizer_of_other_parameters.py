"""An optimizer over parameters that no model has any more."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["OptimizerOfOtherParameters"]

LOOKS = 3


@rule("R24", "optimizer-of-other-parameters", severity="error", cost="look")
class OptimizerOfOtherParameters(Rule):
    """The optimizer has parameters that no called model has, and the model has others in no optimizer.

    Why: an optimizer keeps the parameters that it was made with. If a layer is replaced afterwards, or the
    model is copied or built again, the optimizer still has the old parameters, which get no gradient. The new
    ones are never updated.

    How to fix: make the optimizer last, when the model has all its layers, its dtype and its device.
    """

    advice = ("make the optimizer after the last change to the model",)
    explains = (
        "never-updated",
        "no-gradient-path",
        "not-learning",
        "underfitting",
        "plateau",
        "update-too-small",
    )
    patience = LOOKS

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        if not (step.is_looked_at and step.strangers and step.orphans):
            return
        has_any = any(look.has_gradient for look in step.parameters.values())
        trained = {run.parameters[name].model for name in step.parameters if name in run.parameters}
        missed = [
            name
            for name in step.orphans
            if not has_any or name not in run.parameters or run.parameters[name].model in trained
        ]
        if missed:
            yield Sign(
                f"{len(step.strangers)} parameters of the optimizer are in no model that is called; "
                f"{len(missed)} of the model are in no optimizer",
                Place(tuple(missed)),
                {
                    "parameters of the optimizer": len(step.parameters),
                    "without a gradient": len(step.strangers),
                },
            )
