"""Parameters that have a gradient and never change."""

from __future__ import annotations

import math
from collections.abc import Iterable

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Place, Severity, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["NeverUpdated"]

SMALL = 1e-4
LOOKS = 8
"""Looks in a row in which a parameter has a gradient and nothing has written to it."""


@rule("R3", "never-updated", severity="error", cost="look")
class NeverUpdated(Rule):
    """A parameter has a gradient, and no step changes it.

    Why: it stays as it was initialised while the rest of the model learns around it. Most often it is in no
    optimizer: the optimizer was made before the layer, or with only a part of the model, or the layer is in a
    plain list, where the model does not find it. Or its optimizer never steps, or its gradient is cleared
    before the step. If the program has no optimizer, passes that change nothing are a note.

    How to fix: give all parameters to the optimizer, and step every optimizer. If they are meant to stay as
    they are, set `requires_grad_(False)`: that also saves the time of their gradients.
    """

    advice = (
        "give the parameters to an optimizer",
        "if they are meant to stay as they are: requires_grad_(False)",
    )
    explains = ("not-learning", "underfitting", "plateau", "update-too-small")
    patience = 1

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._emptied = self._between = 0

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        if not step.is_looked_at:
            return
        yield from self._cleared_too_soon(step)
        yield from self._cleared_between(step)
        # What the optimizer of this step holds, it has stepped: if that changed nothing, it was too little.
        still = (set(step.untouched) - _tried(step)) | _unmoved(step, run)
        self._seen = {name: self._seen.get(name, 0) + 1 for name in still}
        lasting = [name for name, looks in self._seen.items() if looks >= LOOKS]
        if not lasting:
            return
        for model in dict.fromkeys(_model(name, run) for name in lasting):
            here = tuple(name for name in lasting if _model(name, run) == model)
            yield self._sign(here, step, run)

    def _cleared_too_soon(self, step: StepFacts) -> Iterable[Sign]:
        self._emptied = self._emptied + 1 if step.emptied else 0
        if self._emptied >= 3:
            at = step.losses[-1].backward_at if step.losses else Place()
            yield Sign(
                "the gradients are cleared between backward() and the step: nothing is updated",
                Place(tuple(step.parameters), file=at.file, line=at.line),
                {"gradient norm after backward": step.backward_norm or 0.0},
                advice=("call optimizer.zero_grad() before backward(), not between backward() and step()",),
            )

    def _cleared_between(self, step: StepFacts) -> Iterable[Sign]:
        """Passes over several batches, each of which clears what the one before it has made."""
        calls = [call for call in step.forwards if call.with_grad]
        lines = {(loss.backward_at.file, loss.backward_at.line) for loss in step.losses}
        is_loop = len(lines) == 1 and len(calls) >= len(step.losses) and not step.is_shared
        self._between = self._between + 1 if step.lost_passes and is_loop else 0
        if self._between >= 3:
            at = step.losses[-1].backward_at
            yield Sign(
                f"the gradients of {step.lost_passes} of {len(step.losses)} backward passes are cleared "
                "before the next pass: they count for nothing",
                Place(file=at.file, line=at.line),
                {"passes": len(step.losses), "cleared": step.lost_passes},
                severity=Severity.WARNING,
                advice=("call optimizer.zero_grad() once for each step, not for each batch",),
            )

    def ended(self, run: RunFacts) -> Iterable[Sign]:
        """An optimizer may begin late; at the end it is known that it never did."""
        idle = tuple(
            name
            for name, looks in self._seen.items()
            if looks >= LOOKS and name in run.parameters and set(run.parameters[name].optimizers) == {0}
        )
        if idle:
            yield Sign(
                f"the optimizer of {_counted(idle)} never steps",
                Place(idle),
                {"looks": self._seen[idle[0]]},
                advice=("call step() of this optimizer",),
                severity=Severity.ERROR,
            )

    def _sign(self, names: tuple[str, ...], step: StepFacts, run: RunFacts) -> Sign:
        outside = [name for name in names if name in step.orphans]
        text = f"{_counted(names)} with a gradient never changed"
        is_loose = any(name in step.loose for name in names)
        if is_loose:
            text += ": a plain list or attribute holds them, so that the model does not know of them"
        elif len(outside) == len(names):
            text += ": in no optimizer"
        return Sign(
            text,
            Place(names),
            {"looks": self._seen[names[0]], "training steps": step.training_step},
            severity=self.severity if is_loose or _is_meant(names, step, run) else Severity.INFO,
            advice=("keep modules in nn.ModuleList or nn.ModuleDict, tensors in nn.Parameter",)
            if is_loose
            else (),
        )


def _counted(names: tuple[str, ...]) -> str:
    return f"{len(names)} parameters" if len(names) > 1 else names[0]


def _tried(step: StepFacts) -> set[str]:
    """Parameters that the step was to change: they have a gradient, and their group a rate."""
    own = {name for group in step.groups if group.lr > 0 for name in group.parameters}
    return {name for name, look in step.parameters.items() if look.has_gradient and name in own}


def _unmoved(step: StepFacts, run: RunFacts) -> set[str]:
    """Parameters of the optimizer itself that it does not move, though its rate and their gradients would.

    A rate of zero is another finding, and so is rounding.
    """
    rates = {name: group.lr for group in step.groups for name in group.parameters}
    return {
        name
        for name, look in step.parameters.items()
        if look.has_gradient
        and not look.moved
        and not look.stuck
        and look.norm > SMALL * (step.grad_norm or 0.0)
        and rates.get(name, 0.0) * look.most > SMALL * look.weight_norm
        and not (name in run.parameters and run.parameters[name].before_norm)
    }


def _model(name: str, run: RunFacts) -> str:
    known = run.parameters.get(name)
    return known.model if known is not None else ""


def _is_meant(names: tuple[str, ...], step: StepFacts, run: RunFacts) -> bool:
    """Is it surely a mistake? Passes that change nothing at all may be made for their gradients."""
    is_by_hand = math.isnan(step.lr) and set(step.parameters) <= set(names)
    return not is_by_hand and _is_meant_to_train(names, step, run)


def _is_meant_to_train(names: tuple[str, ...], step: StepFacts, run: RunFacts) -> bool:
    """Is it surely a mistake?

    A model of which no parameter trains is a teacher or measures a loss. One of which only the last part
    trains is a backbone with a new head.
    """
    if any(name in step.parameters for name in names):
        return True
    known = run.parameters.get(names[0])
    if known is None or not known.model:  # a tensor of the program's own, as the optimizer has others
        own = [run.parameters[name] for name in step.parameters if name in run.parameters]
        return known is not None and any(not each.model for each in own)
    of_model = [each for each in run.parameters.values() if each.model == known.model and each.requires_grad]
    trained = [each for each in of_model if set(each.optimizers) - {0}]
    if not trained or any(0 in run.parameters[name].optimizers for name in names if name in run.parameters):
        return False
    parts = list(dict.fromkeys(_part(each.module, of_model[0].model) for each in of_model))
    return {_part(each.module, of_model[0].model) for each in trained} != {parts[-1]}


def _part(module: str, model: str) -> str:
    """The child of the model that a module belongs to."""
    return module.removeprefix(f"{model}.").partition(".")[0]
