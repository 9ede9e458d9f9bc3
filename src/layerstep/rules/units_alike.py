"""Units of a layer that begin alike and stay alike."""

from __future__ import annotations

import math
from collections.abc import Iterable

from layerstep.doctor.facts import ParameterFacts, ParameterLook, StepFacts
from layerstep.doctor.finding import Place, Severity, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["UnitsAlike"]

LOOKS = 5


@rule("R10", "units-alike", severity="error", cost="look")
class UnitsAlike(Rule):
    """All units of a layer begin with the same weights, and training keeps them the same.

    Why: units with equal weights get equal gradients if the layers behind them are constant too, so they stay
    equal for ever: the layer computes one feature many times. If all weights are zero, there may be no
    gradient at all. If a layer starts at zero and its units differ after the first step, as in the last layer
    of a residual branch, that is fine. If it starts at another single value, this is a note: only biases or
    later layers can make its units differ.

    How to fix: initialise weights at random (`nn.init.kaiming_normal_`, `xavier_uniform_`); zeros are for
    biases.
    """

    advice = ("initialise the weights at random; only biases may begin at a constant",)
    explains = (
        "not-learning",
        "underfitting",
        "plateau",
        "dead-units",
        "vanishing-gradients",
        "update-too-small",
        "never-updated",
        "init-scale",
    )

    def __init__(self) -> None:
        self._looks: dict[str, int] = {}
        self._still: dict[str, int] = {}

    def begins(self, run: RunFacts) -> Iterable[Sign]:
        alike = [each for each in run.parameters.values() if _is_one_value(each)]
        if alike:
            count = f"the weights of {len(alike)} layers" if len(alike) > 1 else "all weights of a layer"
            yield Sign(
                f"{count} begin at one value, {alike[0].mean:.3g}: its units start alike",
                Place(tuple(each.name for each in alike)),
                {"initial value": alike[0].mean},
                severity=Severity.INFO,
            )

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        if not step.is_looked_at:
            return
        alike = []
        for name, look in step.parameters.items():
            known = run.parameters.get(name)
            if known is None or not look.has_gradient or not _is_alike(known, look):
                self._looks.pop(name, None)
                self._still.pop(name, None)
                continue
            counter = self._looks if look.norm > 0 and look.moved > 0 else self._still
            counter[name] = counter.get(name, 0) + (known.std == 0 or counter is self._looks)
            if self._looks.get(name, 0) >= LOOKS or (
                self._still.get(name, 0) >= LOOKS and not look.norm and known.std == 0
            ):
                alike.append(name)
        if alike:
            has_gradient = any(step.parameters[name].norm > 0 for name in alike)
            text = "all units of a layer are equal and stay equal"
            yield Sign(
                text if has_gradient else "the weights are constant and get no gradient",
                Place(tuple(alike)),
                {
                    "gradient norm": step.parameters[alike[0]].norm,
                    "initial value": run.parameters[alike[0]].mean,
                },
            )


def _is_one_value(known: ParameterFacts) -> bool:
    """A weight of a layer with several inputs and units. A filter of one channel may be a mean on purpose."""
    if "Norm" in known.kind or "Embedding" in known.kind or not known.requires_grad:
        return False
    if known.kind in _LAYERS and not known.leaf.startswith("weight"):
        return False
    is_wide = known.is_matrix and known.shape[0] > 1 and math.prod(known.shape[1:]) > 1
    return is_wide and not known.std > 1e-8 * abs(known.mean) and abs(known.mean) > 0


_LAYERS = frozenset(
    ["Linear", "Conv1d", "Conv2d", "Conv3d", "LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell"]
)


def _is_alike(known: ParameterFacts, look: ParameterLook) -> bool:
    """Equal rows of an embedding are tokens that never came; equal columns say something only of a matrix of
    the program's own.
    """
    if not known.is_matrix or "Embedding" in known.kind or "Norm" in known.kind:
        return False
    if known.leaf.startswith("weight") or known.leaf == "in_proj_weight":
        return look.rows_alike
    return look.columns_alike and known.shape[1] > 1
