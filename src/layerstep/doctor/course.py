"""The course of a training in a few lines: the loss, the optimizer, the batch and the speed, evaluations."""

from __future__ import annotations

import math

from layerstep.doctor.dynamics import falls_steadily, windows_of
from layerstep.doctor.run_facts import OptimizerRun, RunFacts
from layerstep.tensors.format import number
from layerstep.views import Fields, Span, Text

__all__ = ["course_view"]


def course_view(run: RunFacts, seconds: float) -> Fields:
    """What was seen of a training whose steps take so many seconds on average, the doctor's own left out."""
    items: list[tuple[str, str]] = []
    for each in run.optimizers.values():
        name = f" {each.number}" if len(run.optimizers) > 1 else ""
        items.append((f"optimizer{name}", _optimizer(each)))
        if len(each.loss):
            items.append((f"loss{name}", _loss(each)))
    if seconds > 0:
        items.append(("speed", _speed(run, seconds)))
    if run.evaluations:
        items.append(("evaluation", _evaluations(run)))
    return Fields((Span("training"),), tuple((name, Text(text)) for name, text in items))


def _optimizer(optimizer: OptimizerRun) -> str:
    groups = len(optimizer.last.groups) if optimizer.last is not None else 1
    rates = [value for value in optimizer.lr.values() if math.isfinite(value)]
    words = [optimizer.kind]
    if rates:
        is_steady = min(rates) == max(rates)
        way = number(rates[0]) if is_steady else f"{number(rates[0])} to {number(rates[-1])}"
        words.append(f"learning rate {way}" + ("" if is_steady else f", at most {number(max(rates))}"))
    return ", ".join([*words, f"{groups} groups"] if groups > 1 else words)


def _loss(optimizer: OptimizerRun) -> str:
    windows = windows_of(optimizer)
    if windows is None:
        first = optimizer.loss.first[0][1]
        return f"{number(first)} at first, {number(optimizer.loss.last)} at last"
    way = f"from {number(windows.first)} to {number(windows.last)}"
    return f"{way}, {_state(optimizer)}; medians of the first steps and of the last {windows.length}"


def _state(optimizer: OptimizerRun) -> str:
    """Falling is a slope beyond three standard errors; the scatter is the median distance from the median."""
    windows = windows_of(optimizer)
    assert windows is not None
    if falls_steadily(optimizer):
        return "still falling"
    if windows.last > windows.before + windows.noise:
        return "rising of late"
    return "converged" if windows.last < windows.first - windows.noise else "no lower than at first"


def _speed(run: RunFacts, seconds: float) -> str:
    last = max(
        (each.last for each in run.optimizers.values() if each.last), key=lambda step: step.training_step
    )
    steps = f"{_rate(1 / seconds)} steps/s"
    if not last.samples:
        return steps
    return f"{last.samples:,} samples a step, {_rate(last.samples / seconds)} samples/s, {steps}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _evaluations(run: RunFacts) -> str:
    evaluations = list(run.evaluations)
    last = evaluations[-1]
    words = f"{len(evaluations)} seen, the last after step {last.step:,} on {last.samples:,} samples"
    losses = [(each.loss, each.step) for each in evaluations if each.loss is not None]
    if not losses:
        return words
    if len(losses) == 1:
        return f"{words}; loss {number(losses[0][0])}"
    (first, _), (now, _), (best, step) = losses[0], losses[-1], min(losses)
    return f"{words}; loss {number(first)} to {number(now)}, lowest {number(best)} after step {step:,}"
