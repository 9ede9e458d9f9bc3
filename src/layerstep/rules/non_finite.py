"""A NaN or an infinity in the loss, a gradient, a parameter or an output."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from layerstep.doctor.facts import LossFacts, StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["NonFinite"]


@rule("R1", "non-finite", severity="critical", cost="always")
class NonFinite(Rule):
    """A loss, gradient, parameter or output is NaN or infinite.

    Why: a value that is not finite spreads. After the next step all parameters are NaN, and the model no
    longer learns. If a gradient scaler skips such a step, that is healthy and not reported.

    How to fix: `catch nonfinite` in a second run stops at the operation and shows its operands. Keep
    logarithms, divisions and roots away from zero, lower the learning rate, clip the gradients.
    """

    advice = (
        "run again with `catch nonfinite`: it stops at the operation and shows its operands",
        "keep log, division and sqrt away from zero; lower the learning rate; clip the gradients",
    )
    explains = ("not-learning", "dead-units", "saturated-units", "plateau", "underfitting")
    confirm = "catch nonfinite"

    def __init__(self) -> None:
        self._said: Sign | None = None

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        found = _of_loss(step) or _of_gradients(step, run) or _of_look(step)
        if found is not None:
            self._said = self._said or found
            yield self._said


def _of_loss(step: StepFacts) -> Sign | None:
    bad = next((loss for loss in step.losses if loss.origin is not None), None)
    if bad is None or bad.origin is None:
        is_bad = any(not math.isfinite(loss.value) for loss in step.losses if loss.is_looked_at)
        return Sign("the loss is not finite") if is_bad else None
    names, words = bad.origin.parameters, bad.origin_words
    if bad.origin.file and (bad.origin.module or not names):
        at = bad.origin.module
        return Sign(
            f"the loss is {bad.value}: {words}{' in ' if at else ''}{at}", bad.origin, _numbers(bad, step)
        )
    module = next((each.path for each in step.activations if each.nonfinite), "")
    after = f", first in the output of {module}" if module else f", after {names[0]}" if names else ""
    line = bad.origin if bad.origin.line else bad.backward_at
    return Sign(
        f"the loss is {bad.value}: {words}{after}",
        Place(names, module or (names[0].rpartition(".")[0] if names else ""), line.file, line.line),
        _numbers(bad, step),
    )


def _numbers(bad: LossFacts, step: StepFacts) -> dict[str, float]:
    return {"loss": bad.value, "step": step.training_step}


def _of_gradients(step: StepFacts, run: RunFacts) -> Sign | None:
    """Gradients are bad though the loss is finite: it was born in the backward pass.

    What is not finite spreads towards the input, so the last of these parameters is next to where it began.
    """
    if not step.bad_gradients:
        return None
    order = [name for name in run.parameters if name in set(step.bad_gradients)] or list(step.bad_gradients)
    nearest, at = order[-1], step.losses[-1].backward_at if step.losses else Place()
    module = run.parameters[nearest].module if nearest in run.parameters else ""
    count = len(step.bad_gradients)
    if step.bad_at is not None:
        where = Place((nearest,), step.bad_at.module or module, step.bad_at.file, step.bad_at.line)
        return Sign(
            f"{count} gradients are not finite, the loss is: {step.bad_words} in the backward pass",
            where if where.file else replace(where, file=at.file, line=at.line),
            {"bad gradients": count, "step": step.training_step},
            advice=("keep its operand away from the point where it has no finite slope",),
        )
    return Sign(
        f"{count} gradients are not finite, the loss is; {nearest} is the nearest to the loss",
        Place((nearest,), module, at.file, at.line),
        {"bad gradients": count, "step": step.training_step},
        advice=("look at the operations after this layer: sqrt and norm at 0 have no finite slope",),
    )


def _of_look(step: StepFacts) -> Sign | None:
    names = tuple(name for name, look in step.parameters.items() if not look.is_finite)
    if names:
        return Sign(
            f"the step has made {len(names)} parameters not finite, {names[0]} first",
            Place(names, names[0].rpartition(".")[0]),
            {"lr": step.lr},
        )
    return None
