"""The plan: the least instrumentation that the active points and the intent need.

Nothing armed, nothing installed. A point needs taps on its module; its ancestors get an exit tap so that
their calls take torch's hook path, because a call that began without hooks can no longer be
finished at (`entered_with_hooks`). A point in the backward pass needs all calls of the forward to be noted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import nn

from layerstep.calls.events import Phase
from layerstep.calls.overwritten_inputs import may_overwrite
from layerstep.engine.point import Point
from layerstep.engine.points import Break, BreakAtOp, Catch, Points
from layerstep.engine.resume import Kind
from layerstep.engine.stepper import Intent, Reach
from layerstep.hooks.taps import Wanted
from layerstep.module_paths.models import Model, Models

__all__ = ["Plan", "make_plan"]

Plan = dict[int, tuple[nn.Module, Wanted]]


def make_plan(
    models: Models,
    points: Points,
    *,
    intent: Intent,
    enclosing: Iterable[nn.Module] = (),
    has_modes: bool = False,
    with_roots: bool = False,
) -> Plan:
    """The taps wanted at each module, by id."""
    wanted: dict[int, tuple[nn.Module, dict[Phase, tuple[Point, ...]]]] = {}

    def want(module: nn.Module, phase: Phase, *at: Point) -> None:
        _, phases = wanted.setdefault(id(module), (module, {}))
        phases[phase] = (*phases.get(phase, ()), *at)

    active = [point for point in points if point.enabled and not point.is_pending and point.is_at_modules]
    at_ops = [point for point in active if isinstance(point, BreakAtOp)]
    if any(point.phase.is_backward for point in active):
        _want_notes(models, want)
    for model in models:
        _want_at_root(model, active, want)
        _want_points(model, [p for p in active if not (p.phase.is_backward or p in at_ops)], want)
        _want_ops(model, at_ops, want)
    _want_steps(models, intent, enclosing, want)
    if has_modes or intent.kind is Kind.OP or at_ops:
        for module in enclosing:  # at an exit the modes of ops are taken out
            want(module, Phase.EXIT)
    if wanted or with_roots or intent.reach is Reach.ROOTS:
        for model in models:
            if (root := model.root) is not None:
                want(root, Phase.ENTER)
    return dict(wanted)


_PHASES = {
    Kind.STEP: (Phase.EXIT,),
    Kind.NEXT: (Phase.EXIT,),
    Kind.FINISH: (Phase.EXIT,),
    Kind.INTO: (Phase.ENTER, Phase.EXIT),  # the exit tap only makes the call take the hook path
    Kind.INTERRUPT: (Phase.ENTER, Phase.EXIT),
    Kind.BACK: (Phase.ENTER, Phase.EXIT),
}


def _want_steps(
    models: Models, intent: Intent, enclosing: Iterable[nn.Module], want: Callable[..., None]
) -> None:
    if intent.reach is Reach.ALL:
        for model in models:
            for module in _modules(model):
                for phase in _PHASES[intent.kind]:
                    want(module, phase)
                if vars(module).get("inplace") is True:
                    want(module, Phase.INPUTS)
    if intent.reach is Reach.ENCLOSING:
        for module in enclosing:
            want(module, Phase.EXIT)


def _want_notes(models: Models, want: Callable[..., None]) -> None:
    """A backward pass can be stepped through only if every call of the forward was noted."""
    for model in models:
        for module in _modules(model):
            want(module, Phase.ENTER)
            want(module, Phase.EXIT)


def _modules(model: Model) -> list[nn.Module]:
    return list({id(module): module for _, module in model.names}.values())


def _want_points(model: Model, active: list[Point], want: Callable[..., None]) -> None:
    everywhere = [point for point in active if point.where is None and not isinstance(point, Catch)]
    if everywhere:
        for module in _modules(model):
            for point in everywhere:
                want(module, point.phase, point)
    for point in active:
        for path, key in point.targets:
            found = _module_of(model, path, key)
            if found is None:
                continue
            module, local = found
            for phase in point.asked_at:
                want(module, phase, point)
            if isinstance(point, Break) and point.phase is Phase.EXIT and may_overwrite(module):
                want(module, Phase.INPUTS)
            for ancestor in _ancestors(model, module, local):
                want(ancestor, Phase.EXIT)


def _want_ops(model: Model, points: list[BreakAtOp], want: Callable[..., None]) -> None:
    """A point at operations looks for them in calls of modules, so it must hear when these begin."""
    for point in points:
        calls = [_module_of(model, path, key) for path, key in point.targets]
        roots = [(model.root, "")] if point.where is None and model.root is not None else []
        for module, local in [*roots, *(call for call in calls if call is not None)]:
            want(module, Phase.ENTER, point)
            want(module, Phase.EXIT)
            for ancestor in _ancestors(model, module, local):
                want(ancestor, Phase.EXIT)


def _want_at_root(model: Model, active: list[Point], want: Callable[..., None]) -> None:
    if (root := model.root) is not None:
        for point in active:
            for phase in point.root_phases:
                want(root, phase, point)


def _module_of(model: Model, path: str, key: int) -> tuple[nn.Module, str] | None:
    if not model.names.has_id(key):  # asked of every model for every target
        return None
    for local in (path, path.removeprefix(model.name + "."), ""):
        module = model.names.module_at(local)
        if module is not None and id(module) == key:
            return module, local
    return None


def _ancestors(model: Model, module: nn.Module, local: str) -> Iterable[nn.Module]:
    for path in {local, *model.names.paths_of(module)}:
        while path:
            path = path.rpartition(".")[0]
            ancestor = model.names.module_at(path)
            if ancestor is not None:
                yield ancestor
