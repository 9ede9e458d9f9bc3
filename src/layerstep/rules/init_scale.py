"""Initial weights that are far too large or far too small."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from layerstep.doctor.facts import ActivationFacts, ParameterFacts, StepFacts
from layerstep.doctor.finding import Place, Severity, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.doctor.series import median
from layerstep.registry import rule

__all__ = ["InitScale"]

GAIN = 4.0
"""Times 1 / sqrt(inputs): the usual initialisations have 0.5 to 2, and so have trained weights."""
INPUTS = 8
GROWTH = 6.0
"""A layer whose output is so much larger than its input; the usual initialisations have 0.1 to 2."""
LARGE = 6.0
SOME, OVERALL = 2.0, 100.0
"""Less in each layer, and so much in all of them."""
EACH = 1.4
FLAT = 0.5
SMALL = 1e-3
_LAYERS = ("Linear", "Conv1d", "Conv2d", "Conv3d")
_RECURRENT = ("RNN", "LSTM", "GRU")


@rule("R11", "init-scale", severity="warning", confidence="statistical", cost="look")
class InitScale(Rule):
    """The signal grows or dies out on its way through the layers before the first step.

    Why: weights that are too large let the outputs grow from layer to layer, so the first loss is huge, the
    activations saturate and the gradients explode. Weights that are too small let the signal die out, and
    with it the gradients. Good initialisations keep it at one size; norm layers do so too. A recurrent layer
    applies its weights at every position of a sequence, so weights that are a little too large soon have a
    huge effect.

    How to fix: use the initialisation of torch or `nn.init.kaiming_normal_` and `xavier_uniform_`: the
    standard deviation of a weight is about 1 / sqrt(inputs).
    """

    advice = (
        "initialise with kaiming_normal_ or xavier_uniform_: a standard deviation of about 1 / sqrt(inputs)",
        "put norm layers between the layers",
    )
    explains = (
        "bad-initial-loss",
        "exploding-gradients",
        "vanishing-gradients",
        "saturated-units",
        "dead-units",
        "diverging",
        "not-learning",
        "non-finite",
        "update-too-small",
        "update-too-large",
        "loss-spike",
        "plateau",
    )

    def __init__(self) -> None:
        self._is_done = False

    def begins(self, run: RunFacts) -> Iterable[Sign]:
        """Norm layers and residual branches hide large weights from the sizes of outputs, not from these."""
        known = {each.name: _gain(each) for each in run.parameters.values() if _is_weight(each)}
        large = [name for name, gain in known.items() if gain > GAIN]
        if len(large) >= 2 and 2 * len(large) >= len(known):
            usual = median([known[name] for name in large])
            yield Sign(
                f"{len(large)} of {len(known)} weights begin with {usual:.2g} times 1 / sqrt(inputs)",
                Place(tuple(large), module=run.parameters[large[0]].module),
                {"times 1 / sqrt(inputs)": tuple(known[name] for name in large[:8])},
                severity=Severity.INFO,
            )

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        if self._is_done or not step.is_looked_at or not step.activations:
            return
        self._is_done = True
        if step.number > 1:
            return
        every = [each for each in step.activations if not each.path.endswith(".input")]
        yield from _over_time(every, run)
        layers = [each for each in every if each.kind in _LAYERS and each.given > 0]
        if len(layers) < 2:
            return
        grown = [each for each in layers if each.std > GROWTH * each.given and not _is_normed(each, every)]
        is_flat = any(each.saturated > FLAT for each in every)  # a tanh after it keeps the signal small
        if len(grown) >= 2 and 2 * len(grown) >= len(layers) and (layers[-1].std > LARGE or is_flat):
            yield _sign(
                f"the signal grows by {_ratio(grown):.3g} in each of {len(grown)} layers", grown, layers
            )
        elif len(grown) < 2 and _builds_up(layers, every):
            yield _sign(
                f"the signal grows to {layers[-1].given / layers[0].given:.3g} times its size on its way "
                f"through {len(layers)} layers",
                layers,
                layers,
            )
        swelling = [each for each in layers if each.std > SOME * each.given and not _is_normed(each, every)]
        if len(grown) < 2 and len(swelling) >= 3 and layers[-1].std > OVERALL * layers[0].given:
            yield _sign(
                f"the signal grows to {layers[-1].std / layers[0].given:.3g} times its size in {len(layers)} "
                "layers",
                swelling,
                layers,
            )
        shrunk = [each for each in layers if each.std < 0.1 * each.given]
        if len(shrunk) >= 2 and layers[-1].given < SMALL * layers[0].given:
            yield _sign(f"the signal dies out: {_ratio(shrunk):.2g} of it passes each layer", shrunk, layers)


def _is_weight(known: ParameterFacts) -> bool:
    """Is it multiplied with several inputs? Tables are not, and filters of one channel may begin large."""
    is_table = "Embedding" in known.kind or "Norm" in known.kind
    return known.is_matrix and known.requires_grad and not is_table and min(known.shape[:2]) >= INPUTS


def _gain(known: ParameterFacts) -> float:
    """Its deviation times the root of its inputs. Of a matrix of the program's own they may be the rows."""
    rows, columns = known.shape[0], math.prod(known.shape[1:])
    inputs = columns if known.leaf.startswith(("weight", "in_proj")) else min(rows, columns)
    return known.std * math.sqrt(inputs)


def _builds_up(layers: list[ActivationFacts], every: list[ActivationFacts]) -> bool:
    """Does it grow between the layers, a little each time, as by sums over neighbours or over branches? One
    that grows at a single place, as by a sum over all nodes, does not.
    """
    sizes = [each.given for each in layers]
    rises = [math.log(after / before) for before, after in itertools.pairwise(sizes) if before > 0 < after]
    whole = sum(rises)
    is_even = max(rises, default=0.0) < 0.5 * whole and sum(each > math.log(EACH) for each in rises) >= 4
    return is_even and whole > math.log(OVERALL) and layers[-1].std > LARGE


def _over_time(every: list[ActivationFacts], run: RunFacts) -> Iterable[Sign]:
    """A recurrent layer applies the same weights again and again: its output grows with the sequence."""
    for each in every:
        if each.kind in _RECURRENT and each.given > 0 and each.std > OVERALL * each.given:
            weights = [own.name for own in run.parameters.values() if own.module == each.path]
            yield Sign(
                f"the signal grows to {each.std / each.given:.3g} times its size over the sequence in "
                f"{each.path}",
                Place(tuple(name for name in weights if "weight_hh" in name), module=each.path),
                {"input": each.given, "output": each.std},
                advice=("start recurrent weights with a gain of 1: nn.init.orthogonal_(weight_hh)",),
            )


def _is_normed(layer: ActivationFacts, every: list[ActivationFacts]) -> bool:
    place = every.index(layer)
    return place + 1 < len(every) and "Norm" in every[place + 1].kind


def _ratio(layers: list[ActivationFacts]) -> float:
    return median([each.std / each.given for each in layers])


def _sign(text: str, wrong: list[ActivationFacts], layers: list[ActivationFacts]) -> Sign:
    return Sign(
        text,
        Place(tuple(f"{each.path}.weight" for each in wrong), module=wrong[0].path),
        {"std of outputs": tuple(each.std for each in layers)},
    )
