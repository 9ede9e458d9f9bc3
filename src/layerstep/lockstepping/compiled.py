"""Eager against compiled: the part that the compiler broke.

Nothing can be seen inside a compiled graph. So each part is compiled by itself and run on the inputs that it
has in the eager run, from the outside in.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from layerstep._torch import drop_hooks, is_compiled, unwrap
from layerstep._torch.compiling import backend_of, compiled_alone
from layerstep.errors import UserError
from layerstep.hooks.temporary import watching_parts
from layerstep.lockstepping.checks import eps_of_pairs
from layerstep.lockstepping.comparing import compare_models
from layerstep.lockstepping.matching import map_calls
from layerstep.lockstepping.result import Lockstep, Site
from layerstep.lockstepping.rounding import Noise, eps_of, local_tolerance, noise_of, terms_of
from layerstep.lockstepping.running import Arguments, arguments_for, running_alone, trace_of
from layerstep.lockstepping.trace import Call, Keeper, Trace
from layerstep.lockstepping.values import arranged, distance, main_pair
from layerstep.rerun.copies import Copies
from layerstep.rerun.module_call import length_of
from layerstep.rerun.twins import twin_of
from layerstep.side_effects.random_streams import RandomState
from layerstep.tensors.compare import compare
from layerstep.tensors.observing import observing

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["compare_compiled"]

SECONDS = 300.0
"""Then no further part is compiled."""


def compare_compiled(
    session: Session,
    a: tuple[str, nn.Module],
    b: tuple[str, nn.Module],
    given: Arguments,
    *,
    tolerance: float | None = None,
) -> Lockstep:
    """Compare `a`, which runs eagerly, with `b`, which is compiled."""
    eager = unwrap(b[1])
    if unwrap(a[1]) is not eager:
        found = compare_models(session, a, (f"{b[0]} run eagerly", eager), given, tolerance=tolerance)
        if found.parts:
            return replace(found, notes=(*found.notes, "they differ without the compiler, too"))
    given = arguments_for(eager, given)
    trace = trace_of(session, eager, given, title=a[0])
    if trace.raised:
        raise UserError(f"{a[0]} cannot be run: {trace.raised}")
    noise = None
    if tolerance is None:
        eps = eps_of_pairs(map_calls(trace, trace), trace, trace)
        noise = noise_of(session, trace, eager, given, eps=eps)
    hunt = _Hunt(session, trace, eager, given, tolerance=tolerance, noise=noise, backend=_backend(b[1]))
    return hunt.answer(a[0], b[0])


def _backend(model: nn.Module) -> Any:
    return next((backend_of(part) for part in (model, *model.modules()) if is_compiled(part)), None)


@dataclass(slots=True, eq=False)
class _Try:
    """A part that was compiled by itself."""

    call: Call
    gap: float
    limit: float
    words: str


@dataclass(slots=True, eq=False)
class _Hunt:
    """The search from the outside in."""

    session: Session
    trace: Trace
    model: nn.Module
    given: Arguments
    tolerance: float | None
    noise: Noise | None
    backend: Any
    tried: int = 0
    failed: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def answer(self, first: str, second: str) -> Lockstep:
        worst = self._try(self.trace.calls[0])
        end = worst.gap if worst is not None else None
        while worst is not None and worst.gap > worst.limit:
            inner = self._first_bad(worst.call)
            if inner is None:
                break
            worst = inner
        is_bad = worst is not None and worst.gap > worst.limit
        plural = "part was" if self.tried == 1 else "parts were"
        notes = [f"{self.tried} {plural} compiled, each by itself, on the inputs of the eager run"]
        notes += [f"{name} could not be compiled by itself" for name in self.failed[:3]]
        if time.monotonic() - self.began > SECONDS:
            notes.append("the search ended early: it took too long")
        return Lockstep(
            first,
            second,
            _site(worst) if worst is not None and is_bad else None,
            calls=(len(self.trace.calls), self.tried),
            mapped=tuple((call.name, call.name) for call in self.trace.calls),
            end=end,
            notes=tuple(notes),
        )

    def _first_bad(self, call: Call) -> _Try | None:
        for part in call.parts:
            if time.monotonic() - self.began > SECONDS:
                return None
            tried = self._try(part)
            if tried is not None and tried.gap > tried.limit:
                return tried
        return None

    def _try(self, call: Call) -> _Try | None:
        """Compile one part and run it on its eager inputs; None if that cannot be done."""
        given = self._inputs(call)
        if given is None or call.module is None:
            return None
        self.tried += 1
        args, kwargs, streams = given
        now = RandomState()
        try:
            with self.session.run.evaluating(), torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                # A copy: dynamo would compile the hooks by which a rerun restores the model itself.
                part = twin_of(call.module)
                drop_hooks(part)
                streams.restore()
                output = compiled_alone(part, self.backend)(*args, **kwargs)
        except Exception:  # the compiler's own, or a part that cannot be copied or does not stand alone
            self.failed.append(call.name)
            return None
        finally:
            now.restore()
        with observing():
            pair = main_pair(call.outputs, Keeper().keep(output))
            gap = distance(*pair) if pair is not None else None
            if pair is None or gap is None:
                return None
            both = arranged(*pair)
            words = compare(*both).words if both is not None and gap else ""
        return _Try(call, gap, self._limit(call), words)

    def _limit(self, call: Call) -> float:
        if self.tolerance is not None:
            return self.tolerance
        eps = eps_of(*(each.values.dtype for each in call.outputs if each.is_float))
        least = 2 * local_tolerance(eps, terms_of(call))
        return max(least, self.noise.of_output(call) if self.noise is not None else 0.0)

    def _inputs(self, wanted: Call) -> tuple[Any, dict[str, Any], RandomState] | None:
        """What a part is called with in the eager run, and where the random streams are then."""
        found: list[tuple[Any, dict[str, Any], RandomState]] = []
        counts: dict[int, int] = {}

        def entered(path: str, module: nn.Module, given: Any) -> None:
            counts[id(module)] = counts.get(id(module), 0) + 1
            if module is wanted.module and counts[id(module)] == wanted.number:
                with observing():
                    copies = Copies(self.given.progress, length_of(*given))
                    found.append((copies.of(given[0]), copies.of(given[1]), RandomState()))

        with observing():
            copies = Copies(self.given.progress, length_of(self.given.args, self.given.kwargs))
            args, kwargs = copies.of(self.given.args), copies.of(self.given.kwargs)
        with (
            running_alone(self.session, self.model),
            watching_parts(self.model, entered, lambda path, module, output: None),
        ):
            self.model(*args, **kwargs)
        return found[0] if found else None


def _site(found: _Try) -> Site:
    call = found.call
    return Site(
        call.path,
        call.path,
        (call.kind, call.kind),
        inputs=0.0,
        outputs=found.gap,
        limit=found.limit,
        words=found.words,
    )
