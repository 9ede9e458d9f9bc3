"""Parameters of an optimizer that no gradient reaches."""

from __future__ import annotations

from collections.abc import Iterable

from layerstep.doctor.facts import CallFacts, ParameterFacts, StepFacts
from layerstep.doctor.finding import Place, Severity, Sign
from layerstep.doctor.rule import Rule
from layerstep.doctor.run_facts import RunFacts
from layerstep.registry import rule

__all__ = ["NoGradientPath"]

LOOKS = 5
NONE = 8
"""Looks without any gradient: an optimizer may step before its part of the loss is there."""
ZERO = 8
"""Looks in which a gradient is zero. A branch that begins at zero has one from the second step on."""


@rule("R4", "no-gradient-path", severity="error", cost="look")
class NoGradientPath(Rule):
    """A parameter should be trained, but no gradient ever reaches it.

    Why: something cuts the graph between its module and the loss: `detach()`, `torch.no_grad()`, `.data`,
    `.item()`, a trip through numpy, or an argmax. The optimizer has the parameter, but never changes it. A
    loss that is made anew from its number has no graph at all. `round()`, `sign()` and comparisons have a
    slope of zero: the gradient is there, and zero in every step. If a module is not called at all, or the
    loss does not use its output, this is only a note.

    How to fix: remove what cuts the graph. If you want the cut, set `requires_grad_(False)` and leave the
    parameters out of the optimizer.
    """

    advice = (
        "remove detach(), no_grad(), .data, .item() or argmax between this module and the loss",
        "if it is meant: requires_grad_(False), and leave the parameters out of the optimizer",
    )
    explains = ("not-learning", "underfitting", "plateau")

    def __init__(self) -> None:
        self._looks: dict[int, int] = {}
        self._had: dict[int, set[str]] = {}
        self._calls: dict[str, CallFacts] = {}
        self._cut: dict[str, str] = {}
        self._zero: dict[str, int] = {}
        """Looks in which the gradient of a parameter was zero; far below zero once it was not."""

    def stepped(self, step: StepFacts, run: RunFacts) -> Iterable[Sign]:
        if not step.is_looked_at or step.emptied:
            return
        had = self._had.setdefault(step.optimizer, set())
        had.update(name for name, look in step.parameters.items() if look.has_gradient)
        self._note_calls(step, run, had)
        looks = self._looks[step.optimizer] = self._looks.get(step.optimizer, 0) + 1
        if looks < LOOKS:
            return
        if not had:
            if looks >= NONE and step.losses and not (step.strangers and step.orphans):
                yield _of_nothing(step)
            return
        yield from self._at_zero(step, run, had)
        without = [
            run.parameters[name]
            for name in step.parameters
            if name not in had and name in run.parameters and run.parameters[name].requires_grad
        ]
        cut = [each for each in without if self._reason(each)]
        if cut:
            yield self._sign(cut)
        idle = [each for each in without if not self._reason(each)]
        if idle:
            called = any(each.module in self._calls for each in idle)
            why = "the loss does not use their output" if called else "their modules are not called"
            yield Sign(
                f"{_counted(idle)} of the optimizer never had a gradient: {why}",
                Place(tuple(each.name for each in idle)),
                severity=Severity.INFO,
                advice=("leave them out of the optimizer, or use them",),
            )

    def _at_zero(self, step: StepFacts, run: RunFacts, had: set[str]) -> Iterable[Sign]:
        """Gradients that come, and are zero in every look: a rounding, a step or a factor of zero."""
        for name, look in step.parameters.items():
            known = run.parameters.get(name)
            is_zero = look.has_gradient and look.most == 0 and not (known is not None and known.before_norm)
            self._zero[name] = self._zero.get(name, 0) + 1 if is_zero else -(1 << 30)
        zero = [name for name, looks in self._zero.items() if looks >= ZERO and name in step.parameters]
        if not zero or not step.loss or _has_other_cause(zero, step, run):
            return
        alive = [name for name in step.parameters if name in had and name not in zero]
        order = [call.path for call in step.calls]
        modules = {name: run.parameters[name].module for name in (*zero, *alive) if name in run.parameters}
        last = max((order.index(modules[n]) for n in zero if modules.get(n) in order), default=-1)
        first = min((order.index(modules[n]) for n in alive if modules.get(n) in order), default=len(order))
        where = f": the slope is zero in front of {order[first]}" if -1 < last < first < len(order) else ""
        yield Sign(
            f"the gradient of {len(zero)} parameters is zero in every step{where}",
            Place(tuple(zero), module=order[last] if where else ""),
            {"looks": self._zero[zero[0]], "with a gradient": len(alive)},
            severity=None if where or not alive else Severity.INFO,
            advice=("look for round(), sign(), a comparison or a factor of zero behind these layers",),
        )

    def _note_calls(self, step: StepFacts, run: RunFacts, had: set[str]) -> None:
        """Where does the gradient end? Between a module without one and the next that has one."""
        trained = {run.parameters[name].module for name in had if name in run.parameters}
        before: list[str] = []
        for call in step.calls:
            self._calls.setdefault(call.path, call)
            if call.cut_from:
                self._cut.setdefault(call.cut_from, call.path)
            if call.path in trained and not call.takes and not call.is_fed:
                for path in before:
                    self._cut.setdefault(path, call.path)
            if call.path in trained:
                before = []
            else:
                before.append(call.path)

    def _reason(self, parameter: ParameterFacts) -> str:
        call = self._calls.get(parameter.module)
        if call is None:
            return ""
        if not call.with_grad:
            return f"{parameter.module} is called under torch.no_grad()"
        if not call.gives:
            return f"the output of {parameter.module} has no graph"
        after = self._cut.get(parameter.module) or self._cut_behind(parameter.module)
        return f"the graph is cut in front of {after}" if after else ""

    def _cut_behind(self, module: str) -> str:
        """The cut that lies behind a module in the order of the calls, if what is between has no parameter
        or was cut too.
        """
        order = list(self._calls)
        for path in order[order.index(module) + 1 :]:
            if path in self._cut:
                return self._cut[path]
            if self._calls[path].is_fed:
                return ""
        return ""

    def _sign(self, cut: list[ParameterFacts]) -> Sign:
        """The last of them is the one behind which the gradient ends."""
        order = list(self._calls)
        last = max(cut, key=lambda each: order.index(each.module))
        return Sign(
            f"no gradient reaches {_counted(cut)}: {self._reason(last)}",
            Place(tuple(each.name for each in cut), module=last.module),
            {"parameters": len(cut)},
        )


def _has_other_cause(zero: list[str], step: StepFacts, run: RunFacts) -> bool:
    """Units that are dead, weights that begin constant, and half precision have rules of their own."""
    known = [run.parameters[name] for name in zero if name in run.parameters]
    is_dead = any(each.units and each.dead == each.units for each in step.activations)
    is_constant = any(each.is_matrix and not each.std > 0 for each in run.parameters.values())
    return is_dead or is_constant or any(each.dtype in ("f16", "bf16") for each in known)


def _of_nothing(step: StepFacts) -> Sign:
    """`backward()` has run, and reached none of the parameters."""
    at = step.losses[-1].made_at
    return Sign(
        "backward() reaches no parameter of the optimizer: the loss does not hang on them",
        Place(tuple(step.parameters), file=at.file, line=at.line),
        {"parameters": len(step.parameters), "loss": step.losses[-1].value},
        advice=("call backward() on the loss itself, not on a new tensor made of its number",),
    )


def _counted(parameters: list[ParameterFacts]) -> str:
    return f"{len(parameters)} parameters" if len(parameters) > 1 else parameters[0].name
