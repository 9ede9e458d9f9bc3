"""Rectified units that answer to nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["DeadUnits"]

SHARE = 0.7
"""Half of the units of a healthy layer may be silent where the inputs are all positive."""
NOW = 0.9
SAMPLES = 1000
FEWER = 256
"""Enough where no unit at all has answered: nothing passes the layer."""
LOOKS = 5
UNITS = 8


@rule("R16", "dead-units", severity="warning", confidence="statistical", cost="look")
class DeadUnits(Rule):
    """Most units of a layer give zero for every sample.

    Why: a ReLU that gives zero passes no gradient. A unit that does so for all samples never changes again. A
    large step or a strongly negative bias does that.

    How to fix: lower the learning rate or warm it up; start biases at 0; use LeakyReLU or GELU; normalise the
    inputs.
    """

    advice = (
        "lower the learning rate, or warm it up",
        "start biases at 0, normalise the inputs, or use LeakyReLU or GELU",
    )
    explains = ("not-learning", "plateau", "underfitting", "vanishing-gradients", "update-too-small")
    patience = 2

    def __init__(self) -> None:
        self._looks: Counter[str] = Counter()
        self._silent: Counter[str] = Counter()

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        for each in step.activations:
            if each.units < UNITS or not (each.silent or each.dead or each.seen):
                continue
            self._looks[each.path] += 1
            is_silent = each.silent > NOW * each.units and each.samples >= 32
            self._silent[each.path] = self._silent[each.path] + 1 if is_silent else 0
            ever = each.dead > SHARE * each.units and self._looks[each.path] >= LOOKS
            now = self._silent[each.path] >= 2 * LOOKS
            is_shut = each.dead == each.units and each.seen >= FEWER and ever
            if is_shut or (each.seen >= SAMPLES and (ever or now)):
                count = each.dead if ever else each.silent
                path = each.path.removesuffix(".input")
                units = (
                    f"of {each.layer}"
                    if each.layer
                    else f"before {path}"
                    if path != each.path
                    else f"of {path}"
                )
                yield Sign(
                    f"{count} of {each.units} units {units} give zero for all samples",
                    Place(_weights(each.layer, run), path),
                    {"dead": count, "units": each.units, "samples": each.seen},
                )


def _weights(layer: str, run: RunFacts) -> tuple[str, ...]:
    """The parameters of the layer whose outputs are rectified."""
    return tuple(each.name for each in run.parameters.values() if layer and each.module == layer)
