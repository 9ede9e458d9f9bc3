"""What a probe is, and how one is run. A probe is a function in a file of `probes/`."""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from layerstep.doctor.training_calls import TrainingCall, note_call
from layerstep.doctor.trial import Trial, trying
from layerstep.doctor.watching import Doctor
from layerstep.documentation import documentation
from layerstep.errors import UserError, first_line
from layerstep.imports import our_imports
from layerstep.tensors.observing import observing
from layerstep.views import Level, Plot

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Found", "Probe", "all_probes", "probe", "run_probe"]


@dataclass(frozen=True, slots=True)
class Found:
    """What a probe has found."""

    text: str
    """The answer, in one line."""
    level: Level
    did: str
    """What was done, in one line."""
    figures: tuple[tuple[str, str], ...] = ()
    plot: Plot | None = None
    seconds: float = 0.0
    step: int = 0
    """The training step whose batch was used; 0 for the call of this stop."""
    ran_out: bool = False
    """It was ended because it had taken its time."""


@dataclass(frozen=True, slots=True)
class Probe:
    """An experiment."""

    name: str
    function: Callable[[Trial], Found]
    cost: str
    """What it computes: `200 training steps of a copy`."""
    needs_loss: bool

    @property
    def summary(self) -> str:
        return self.help.partition("\n")[0]

    @property
    def help(self) -> str:
        """The docstring of its function, unindented."""
        return documentation(self.function)


_probes: dict[str, Probe] = {}
_Function = Callable[[Trial], Found]


def probe(name: str, *, cost: str, needs_loss: bool = True) -> Callable[[_Function], _Function]:
    """Register a function as a probe."""

    def register(function: _Function) -> _Function:
        _probes[name] = Probe(name, function, cost, needs_loss)
        return function

    return register


def all_probes() -> list[Probe]:
    """Every probe, by name."""
    with our_imports():
        package = importlib.import_module("layerstep.doctor.probes")
        for module in pkgutil.iter_modules(package.__path__, "layerstep.doctor.probes."):
            importlib.import_module(module.name)
    return [_probes[name] for name in sorted(_probes)]


def run_probe(session: Session, chosen: Probe) -> Found:
    """Run a probe on copies, and say what it took."""
    call = _call(session, chosen)
    begun = time.perf_counter()
    steppers = (stepped.optimizer for stepped in session.run.training.optimizers)
    trial = Trial(call, [optimizer for optimizer in steppers if optimizer is not None])
    with trying(session, call.module):
        try:
            found = chosen.function(trial)
        except UserError:
            raise
        except Exception as error:  # the model's own code, on a copy or on changed inputs
            line = f"{type(error).__name__}: {first_line(error)}"[:200]
            raise UserError(f"the probe could not run on a copy of the model: {line}") from None
    return replace(found, seconds=time.perf_counter() - begun, step=call.step, ran_out=trial.is_out_of_time)


def _call(session: Session, chosen: Probe) -> TrainingCall:
    """The last training call that the doctor has seen, or the outermost call that runs at this stop."""
    last = session.instruments.get(Doctor).training_calls.last
    if last is not None and last.reference() is not None:
        return last
    if chosen.needs_loss:
        raise UserError("no training step was looked at yet", "`doctor on`, then let a step run")
    stack = session.run.pause.stack if session.run.pause is not None else []
    outer = next((f for f in reversed(stack) if f.module is not None and f.call is None), None)
    if outer is None or outer.module is None:
        raise UserError("no call of a model is known yet", "`doctor on`, then let a step run")
    with observing():
        return note_call(outer.module, outer.args, outer.kwargs, step=0, autocast={})
