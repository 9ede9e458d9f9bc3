"""Tanh and sigmoid layers at their flat ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from layerstep.doctor.facts import ActivationFacts, StepFacts
from layerstep.doctor.finding import Place, Severity, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["SaturatedUnits"]

SHARE, AT_FIRST = 0.8, 0.5
"""Of the outputs at the flat ends. Fresh weights of the usual size have a hundredth."""
EARLY = 60
LOOKS = 8


@rule("R17", "saturated-units", severity="warning", confidence="statistical", cost="look")
class SaturatedUnits(Rule):
    """Most outputs of a tanh or sigmoid inside the model are at its flat ends.

    Why: there the slope is almost zero, so the layers before it get almost no gradient. Large weights or
    inputs do that. The last sigmoid or tanh of a model may be at its flat ends: the model is then sure of its
    answer.

    How to fix: normalise the inputs, start with smaller weights, put a norm before it, or use ReLU or GELU.
    """

    advice = (
        "normalise the inputs; start with smaller weights",
        "put a norm before it, or use ReLU or GELU",
    )
    explains = ("vanishing-gradients", "not-learning", "plateau", "underfitting", "update-too-small")

    def __init__(self) -> None:
        self._streaks: Counter[str] = Counter()

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        if not step.activations:
            return
        inner = _inner(step)
        for each in inner:
            is_flat = each.saturated > (AT_FIRST if step.number <= EARLY else SHARE)
            self._streaks[each.path] = self._streaks[each.path] + 1 if is_flat else 0
            if self._streaks[each.path] >= LOOKS:
                path = each.path.removesuffix(".input")
                what = f"{each.path} ({each.kind})" if path == each.path else f"the {each.kind} before {path}"
                yield Sign(
                    f"{each.saturated:.0%} of the outputs of {what} are at its flat ends",
                    Place(module=path),
                    {"flat": each.saturated},
                    severity=None if step.number <= EARLY else Severity.INFO,
                )


def _inner(step: StepFacts) -> list[ActivationFacts]:
    """The bounded layers with a layer after them; a gate or the last one may be meant to be flat. Where they
    are functions, they are seen by what the next layer gets.
    """
    layers = [at for at, each in enumerate(step.activations) if each.kind in _LAYERS]
    last = max(layers, default=-1)
    modules = [
        each for at, each in enumerate(step.activations) if each.kind in ("Tanh", "Sigmoid") and at < last
    ]
    return modules or [each for each in step.activations if each.kind in ("tanh", "sigmoid")]


_LAYERS = frozenset(["Linear", "Conv1d", "Conv2d", "Conv3d"])
