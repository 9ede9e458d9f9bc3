"""Hooks on the run: points at layers, and a look before each step of an optimizer."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import psutil
import torch
from torch import Tensor

from layerstep._torch import is_tracing
from layerstep.automation.alerts import Alert, Alerts
from layerstep.automation.hook import AlertSeverity, Hook, HookAction, HookContext, Moment
from layerstep.automation.recovery import Recovery
from layerstep.calls.events import Phase
from layerstep.calls.operations import user_frame
from layerstep.calls.stack import Frame
from layerstep.engine.instrument import Instrument
from layerstep.engine.point import Point
from layerstep.engine.points import Break, Record
from layerstep.errors import UserError, first_line
from layerstep.gradients.recorder import named_parameters
from layerstep.gradients.sizes import measure
from layerstep.module_paths.where import Where
from layerstep.side_effects.guard import Outcome
from layerstep.tensors.observing import observing
from layerstep.tensors.shapes import tensors_in
from layerstep.tensors.summary import summarize
from layerstep.training_steps.steps import Stepped
from layerstep.views import Level, Notice

if TYPE_CHECKING:
    from layerstep.engine.session import Session

__all__ = ["Hooks", "hooks_of"]

_PHASES = {Moment.FORWARD: Phase.EXIT, Moment.BACKWARD: Phase.BACKWARD}
_NOTICE: dict[AlertSeverity, Level] = {
    AlertSeverity.INFO: "info",
    AlertSeverity.WARNING: "warn",
    AlertSeverity.CRITICAL: "error",
}


def hooks_of(session: Session) -> Hooks:
    """The hooks of a session."""
    return session.instruments.get(Hooks)


class Hooks(Instrument):
    """The hooks of a session. One that raises is reported and disabled; the run goes on."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._hooks: dict[int, Hook] = {}
        self._points: dict[int, list[Point]] = {}
        self._recoveries: dict[int, Recovery] = {}
        self._outcomes: dict[tuple[int, str], Outcome] = {}
        """What each recovery has changed, for `perturbed?`."""
        self._recovered: Counter[tuple[int, str]] = Counter()
        self._last = 0
        self._loss: float | None = None
        self._process = psutil.Process(os.getpid())
        self.alerts = Alerts()
        self.inspected: Callable[[Tensor, str, str, str], object] | None = None
        """Is given what `inspect` looks at: tensor, name, layer, operation."""
        self.tracked: Callable[[str, Tensor], None] | None = None
        """Is given what `track_gradients` looks at: name, gradient."""

    def __iter__(self) -> Iterator[tuple[int, Hook]]:
        return iter(list(self._hooks.items()))

    def register_hook(self, hook: Hook) -> int:
        """Let a hook act from now on; its number."""
        self._last += 1
        number = self._last
        self._hooks[number] = hook
        self._recoveries[number] = Recovery(self._session.run.models)
        phase = _PHASES.get(hook.trigger.moment)
        if phase is not None:
            wheres = hook.patterns or (Where.parse("**"),)
            self._points[number] = [p for where in wheres for p in self._put(number, hook, where, phase)]
        if self._session.run.is_attached:
            self.apply()
        return number

    def remove_hook(self, number: int) -> None:
        """Take a hook off."""
        self._get(number)
        del self._hooks[number]
        for point in self._points.pop(number, ()):
            self._session.points.delete(point)
        self._session.rearm()

    def enable_hook(self, number: int, enabled: bool = True) -> None:
        """Let it act again, or not."""
        hook = self._get(number)
        hook.enabled, hook.error = enabled, ""
        for point in self._points.get(number, ()):
            point.enabled = enabled
        self._session.rearm()

    def _get(self, number: int) -> Hook:
        if number not in self._hooks:
            known = ", ".join(map(str, self._hooks)) or "there are none"
            raise UserError(f"no hook {number}", known)
        return self._hooks[number]

    # --- on and off ---

    def apply(self) -> None:
        self._listen(
            wanted=any(h.trigger.moment is Moment.STEP and h.is_active for h in self._hooks.values())
        )

    def clear(self) -> None:
        self._listen(wanted=False)

    def _listen(self, *, wanted: bool) -> None:
        backward, training = self._session.run.backward_calls, self._session.run.training
        backward.listen(backward.before, self._backward_begins, wanted)
        training.listen(training.before, self._before_step, wanted)
        training.listen(training.after, self._after_step, wanted)

    def cost(self) -> list[str]:
        return [f"hook {n} {h.name}: {h.executions} × {h.trigger}" for n, h in self if h.is_active]

    def _put(self, number: int, hook: Hook, where: Where, phase: Phase) -> list[Point]:
        found: list[Point] = [
            Record(
                where,
                phase=phase,
                action=lambda frame: self._at_layer(number, frame),
                set_by=f"hook {number}",
            )
        ]
        if any(action.kind == "pause" for action in hook.actions):
            found.append(Break(where, phase=phase))
        for point in found:
            self._session.points.add(point)
            self._session.intake.set_or_leave_pending(point)
        return found

    # --- what happens ---

    def _at_layer(self, number: int, frame: Frame) -> None:
        hook = self._hooks.get(number)
        if hook is None or not hook.is_active or is_tracing():
            return
        value = frame.output if frame.call is None else frame.call.grad_out
        step = self._session.run.training.count + 1
        layer = frame.path.partition("|")[0]
        self._act(number, hook, HookContext(hook.name, step, layer, hook.trigger.moment, value), None)

    def _backward_begins(self, losses: list[Tensor], frame: FrameType) -> None:
        if losses and losses[0].numel() == 1 and not self._session.run.is_silent:
            with observing():
                self._loss = float(losses[0].detach())

    def _before_step(self, stepped: Stepped) -> None:
        if self._session.run.is_silent or is_tracing():
            return
        step = self._session.run.training.count + (stepped.number == 1)
        norm: float | None = None
        for number, hook in self:
            if hook.trigger.moment is not Moment.STEP or not hook.is_active:
                continue
            if norm is None and "grad_norm" in _names(hook):
                norm = _norm(stepped)
            context = HookContext(hook.name, step, loss=self._loss, grad_norm=norm)
            if self._holds(hook, context, stepped):
                norm = norm if norm is not None else _norm(stepped)
                context = HookContext(hook.name, step, loss=self._loss, grad_norm=norm)
                self._act(number, hook, context, stepped)
            else:
                self._keep_healthy(number, hook, context, stepped)

    def _after_step(self, stepped: Stepped) -> None:
        for recovery in self._recoveries.values():
            recovery.stepped()

    def _holds(self, hook: Hook, context: HookContext, stepped: Stepped) -> bool:
        trigger = hook.trigger
        if trigger.condition is None:
            return context.step % trigger.every == 0
        optimizer = stepped.optimizer
        groups = optimizer.param_groups if optimizer is not None else []
        known: dict[str, Any] = {
            "loss": context.loss,
            "grad_norm": context.grad_norm,
            "step": context.step,
            "memory_mb": self._memory() if "memory_mb" in _names(hook) else None,
            "lr": max((float(group.get("lr", 0.0)) for group in groups), default=0.0),
            "isfinite": math.isfinite,
        }
        if any(known.get(name, 0) is None for name in _names(hook)):
            return False  # no loss was seen yet
        try:
            return bool(trigger.condition.evaluate(known))
        except Exception as error:
            self._failed(hook, error)
            return False

    def _memory(self) -> float:
        if torch.cuda.is_available():
            return torch.cuda.memory_allocated() / 1e6
        return float(self._process.memory_info().rss) / 1e6

    def _keep_healthy(self, number: int, hook: Hook, context: HookContext, stepped: Stepped) -> None:
        for action in hook.actions:
            if action.kind == "restore":
                try:
                    self._recoveries[number].keep(action, stepped, context.step)
                except Exception as error:
                    self._failed(hook, error)

    # --- what is done ---

    def _act(self, number: int, hook: Hook, context: HookContext, stepped: Stepped | None) -> None:
        begun = time.perf_counter()
        hook.executions += 1
        hook.last_step = context.step
        try:
            for action in hook.actions:
                if action.changes_the_run and stepped is not None:
                    self._recover(number, hook, action, stepped, context.step)
                else:
                    self._do(hook, action, context, stepped)
        except Exception as error:
            self._failed(hook, error)
        finally:
            hook.seconds += time.perf_counter() - begun
            if not hook.is_active:
                self._rest(number)

    def _rest(self, number: int) -> None:
        """Its points ask no more; what is not needed goes when the session arms next."""
        for point in self._points.get(number, ()):
            if not isinstance(point, Break):  # it may be about to stop here
                point.enabled = False
            else:
                point.temporary = True

    def _do(self, hook: Hook, action: HookAction, context: HookContext, stepped: Stepped | None) -> None:
        match action.kind:
            case "alert":
                self._alert(hook, action, context)
            case "callback":
                if action.function is not None:
                    hook.results.append(action.function(context))
            case "pause":
                if stepped is not None:
                    self._pause(hook)
            case "snapshot":
                hook.results.append(self._snapshot(action, context, stepped))
            case "record":
                hook.results.append(self._figures(context))
            case _:
                self._look(hook, action, context)

    def _alert(self, hook: Hook, action: HookAction, context: HookContext) -> None:
        alert = Alert(hook.name, action.severity, action.message, context.step, layer=context.layer)
        if self.alerts.send(alert):
            place = f" in {context.layer}" if context.layer else ""
            text = f"{hook.name}: {action.message}{place}, step {context.step}"
            self._session.say(Notice(text, level=_NOTICE[action.severity]), "alert")

    def _pause(self, hook: Hook) -> None:
        if self._session.prompt.frontend is None and not self._session.prompt.script:
            self._session.say(Notice(f"{hook.name} wants to pause, but there is no terminal to ask at"))
            hook.enabled = False
            return
        frame = user_frame(sys._getframe(1))
        if frame is not None:
            self._session.standstill.stop_here(frame, f"hook {hook.name}")

    def _figures(self, context: HookContext) -> dict[str, Any]:
        found: dict[str, Any] = {"step": context.step, "layer": context.layer}
        if context.moment is Moment.STEP:
            return {**found, "loss": context.loss, "grad_norm": context.grad_norm}
        for _, tensor in tensors_in(context.value, most=1):
            stats = summarize(tensor, limit=1 << 20, brief=True).stats
            if stats is not None:
                found |= {"mean": stats.mean, "std": stats.std, "min": stats.min, "max": stats.max}
                found["nonfinite"] = stats.nan + stats.posinf + stats.neginf
        return found

    def _look(self, hook: Hook, action: HookAction, context: HookContext) -> None:
        with observing():
            for name, layer, tensor in self._tensors(hook, context):
                (size,) = measure([tensor])
                hook.results.append({"step": context.step, "name": name, **size._asdict()})
                if action.kind == "track gradients" and self.tracked is not None:
                    self.tracked(name, tensor)
                elif action.kind == "inspect" and self.inspected is not None:
                    self.inspected(tensor, name, layer, str(context.moment))

    def _tensors(self, hook: Hook, context: HookContext) -> list[tuple[str, str, Tensor]]:
        """The output of the layer or the gradient at it; at a step, the gradients of the layers."""
        if context.moment is not Moment.STEP:
            found = tensors_in(context.value, most=4)
            return [(f"{context.layer}{place}", context.layer, each) for place, each in found]
        every = named_parameters(self._session)
        if hook.patterns:
            models = self._session.run.models
            inside = {
                id(p) for where in hook.patterns for _, m in where.look_up(models) for p in m.parameters()
            }
            every = [each for each in every if id(each.parameter) in inside]
        return [(e.name, e.layer, g) for e in every if (g := e.parameter.grad) is not None]

    def _snapshot(self, action: HookAction, context: HookContext, stepped: Stepped | None) -> Path:
        assert action.path is not None
        action.path.mkdir(parents=True, exist_ok=True)
        name = f"step-{context.step}" + (f"-{context.layer}" if context.layer else "")
        file = action.path / f"{name}.pt"
        if stepped is None:
            found = {place or "value": t.detach().clone() for place, t in tensors_in(context.value, most=8)}
            torch.save(found, file)
            return file
        optimizer = stepped.optimizer
        models = {m.name: m.root.state_dict() for m in self._session.run.models if m.root is not None}
        state = optimizer.state_dict() if optimizer is not None else {}
        torch.save({"step": context.step, "models": models, "optimizer": state}, file)
        return file

    def _recover(self, number: int, hook: Hook, action: HookAction, stepped: Stepped, step: int) -> None:
        done = self._recoveries[number].act(action, stepped, step)
        if not done:
            return
        hook.results.append(done)
        alert = Alert(hook.name, AlertSeverity.WARNING, done, step, layer=action.kind)
        if self.alerts.send(alert):
            self._session.say(Notice(f"hook {hook.name}: {done}, step {step}", level="warn"), "alert")
        key = (number, action.kind)
        if key not in self._outcomes:
            self._outcomes[key] = Outcome()
            self._session.prompt.effects.disturbed.append((f"hook {hook.name}", self._outcomes[key]))
        self._recovered[key] += 1
        count = self._recovered[key]
        times = f"; {count:,} times in all" if count > 1 else ""
        self._outcomes[key].changed = [f"{done}, step {step}{times}"]

    def _failed(self, hook: Hook, error: Exception) -> None:
        hook.errors += 1
        hook.enabled = False
        hook.error = f"{type(error).__name__}: {first_line(error)}"[:200]
        text = f"the hook {hook.name} raised and is disabled: {hook.error}"
        self._session.say(Notice(text, "`hooks` lists them", level="warn"))


def _names(hook: Hook) -> tuple[str, ...]:
    condition = hook.trigger.condition
    return condition.code.co_names if condition is not None else ()


def _norm(stepped: Stepped) -> float:
    optimizer = stepped.optimizer
    groups = optimizer.param_groups if optimizer is not None else []
    gradients = [p.grad for group in groups for p in group["params"] if p.grad is not None]
    with observing():
        return math.hypot(*(size.norm for size in measure(gradients)))
