"""Hooks on the run: points and taps at layers, and a look before each step of an optimizer."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

import psutil
import torch
from torch import Tensor

from layerstep._torch import is_tracing
from layerstep.automation.alerts import Alert, Alerts
from layerstep.automation.hook import AlertSeverity, Hook, HookAction, HookContext, Moment
from layerstep.automation.looking import figures_of, save_snapshot, tensors_at
from layerstep.automation.outputs import OutputTaps, modules_of, without_nonfinite
from layerstep.automation.recovery import Recovery
from layerstep.calls.events import Phase
from layerstep.calls.operations import user_frame
from layerstep.calls.stack import Frame
from layerstep.engine.instrument import Instrument
from layerstep.engine.point import Point
from layerstep.engine.points import Break, Record
from layerstep.errors import UserError, first_line
from layerstep.gradients.sizes import measure
from layerstep.module_paths.where import Where
from layerstep.side_effects.guard import Outcome
from layerstep.tensors.observing import observing
from layerstep.training_steps.steps import Stepped
from layerstep.views import Level, Notice

if TYPE_CHECKING:
    from layerstep.engine.messages import Frontend
    from layerstep.engine.session import Session

__all__ = ["Hooks", "hooks_of"]

_PHASES = {Moment.FORWARD: Phase.EXIT, Moment.BACKWARD: Phase.BACKWARD}
_NOTICE: dict[AlertSeverity, Level] = {
    AlertSeverity.INFO: "info",
    AlertSeverity.WARNING: "warn",
    AlertSeverity.CRITICAL: "error",
}
_EVERYWHERE = (Where.parse("**"),)


def hooks_of(session: Session) -> Hooks:
    """The hooks of a session."""
    return session.instruments.get(Hooks)


class Hooks(Instrument):
    """The hooks of a session. One that raises is reported and disabled; the run goes on."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._hooks: dict[int, Hook] = {}
        self._points: dict[int, list[Point]] = {}
        self._outputs = OutputTaps(session, self._returned)
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
        self.open_prompt: Callable[[], Frontend | None] | None = None
        """Opens a prompt for the first hook that pauses, in a session that has none."""

    def __iter__(self) -> Iterator[tuple[int, Hook]]:
        return iter(list(self._hooks.items()))

    def register_hook(self, hook: Hook) -> int:
        """Let a hook act from now on; its number."""
        pauses = any(action.kind == "pause" for action in hook.actions)
        if pauses and not self._can_ask():
            text = f"the hook {hook.name} cannot pause: there is no terminal to ask at"
            self._session.say(Notice(text, level="warn"))
            pauses = False
        number = self._last + 1
        phase = _PHASES.get(hook.trigger.moment)
        if phase is not None:
            self._points[number] = self._put(number, hook, phase, pauses=pauses)
        self._hooks[number] = hook
        self._recoveries[number] = Recovery(self._session.run.models, self._session.run.training)
        self._last = number
        if self._session.run.is_attached:
            self._session.rearm()
        return number

    def _can_ask(self) -> bool:
        prompt = self._session.prompt
        if prompt.frontend is None and self.open_prompt is not None:
            prompt.frontend = self.open_prompt()
        return prompt.frontend is not None or bool(prompt.script)

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
        active = [(number, hook) for number, hook in self if hook.is_active]
        self._listen(wanted=any(hook.trigger.moment is Moment.STEP for _, hook in active))
        self._outputs.apply((n, hook.patterns or _EVERYWHERE) for n, hook in active if hook.changes_outputs)

    def clear(self) -> None:
        self._listen(wanted=False)
        self._outputs.apply(())

    def _listen(self, *, wanted: bool) -> None:
        backward, training = self._session.run.backward_calls, self._session.run.training
        backward.listen(backward.before, self._backward_begins, wanted)
        training.listen(training.before, self._before_step, wanted)
        training.listen(training.after, self._after_step, wanted)

    def cost(self) -> list[str]:
        return [f"hook {n} {h.name}: {h.executions} × {h.trigger}" for n, h in self if h.is_active]

    def never_acted(self) -> list[str]:
        """Of each hook on layers that never acted, its name and why."""
        told = []
        for _, hook in self:
            if hook.executions or hook.error or hook.trigger.moment is Moment.STEP:
                continue
            known = modules_of(self._session, hook.patterns or _EVERYWHERE)
            names = " ".join(where.text for where in hook.patterns) or "any layer"
            why = "was not called" if hook.trigger.moment is Moment.FORWARD else "had no backward pass"
            told.append(f"{hook.name}: {names} {why}" if known else f"{hook.name}: no layer fits {names}")
        return told

    def _put(self, number: int, hook: Hook, phase: Phase, *, pauses: bool) -> list[Point]:
        """Set its points; a layer that is not there is an error, and leaves none of them."""
        session, wheres = self._session, hook.patterns or _EVERYWHERE
        found: list[Point] = []
        if not hook.changes_outputs:
            found += [
                Record(
                    where,
                    phase=phase,
                    action=lambda frame: self._at_layer(number, frame),
                    set_by=f"hook {number}",
                )
                for where in wheres
            ]
        elif len(session.run.models) and not session.intake.discovery.is_on:  # no model may come
            for where in wheres:
                where.look_up(session.run.models)
        if pauses:
            found += [Break(where, phase=phase) for where in wheres]
        for point in found:
            session.points.add(point)
        try:
            for point in found:
                session.intake.set_or_leave_pending(point)
        except UserError:
            for point in found:
                session.points.delete(point)
            raise
        return found

    # --- what happens ---

    def _at_layer(self, number: int, frame: Frame) -> None:
        if number in self._hooks and not is_tracing():
            value = frame.output if frame.call is None else frame.call.grad_out
            self._act_at(number, frame.path.partition("|")[0], value)

    def _returned(self, number: int, layer: str, value: Any) -> Any:
        return self._act_at(number, layer, value) if number in self._hooks else None

    def _act_at(self, number: int, layer: str, value: Any) -> Any:
        hook = self._hooks[number]
        if not hook.is_active:
            return None
        step = self._session.run.training.count + 1
        context = HookContext(hook.name, step, layer, hook.trigger.moment, value)
        after = self._act(number, hook, context, None)
        return None if after.value is value else after.value

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

    def _act(self, number: int, hook: Hook, context: HookContext, stepped: Stepped | None) -> HookContext:
        """Do what the hook does; the context as its actions have left it."""
        begun = time.perf_counter()
        hook.executions += 1
        hook.last_step = context.step
        try:
            for action in hook.actions:
                if not action.changes_the_run:
                    self._do(hook, action, context, stepped)
                elif stepped is not None:
                    done = self._recoveries[number].act(action, stepped)
                    self._tell_change(number, hook, action, context.step, done)
                else:
                    value, count = without_nonfinite(context.value, action.number)
                    context = replace(context, value=value)
                    where = f"in the output of {context.layer} by {action.number:g}"
                    done = f"replaced {count:,} values {where}" if count else ""
                    self._tell_change(number, hook, action, context.step, done)
        except Exception as error:
            self._failed(hook, error)
        finally:
            hook.seconds += time.perf_counter() - begun
            if not hook.is_active:
                self._rest(number)
        return context

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
            case "pause":
                if stepped is not None and self._can_ask():
                    self._pause(hook)
            case "callback":
                if action.function is not None:
                    hook.results.append(action.function(context))
            case "snapshot":
                if action.path is not None:
                    hook.results.append(save_snapshot(self._session, action.path, context, stepped))
            case _:
                with self._session.run.evaluating(), observing():
                    self._look(hook, action, context)

    def _alert(self, hook: Hook, action: HookAction, context: HookContext) -> None:
        alert = Alert(hook.name, action.severity, action.message, context.step, layer=context.layer)
        if self.alerts.send(alert):
            place = f" in {context.layer}" if context.layer else ""
            text = f"{hook.name}: {action.message}{place}, step {context.step}"
            self._session.say(Notice(text, level=_NOTICE[action.severity]), "alert")

    def _pause(self, hook: Hook) -> None:
        frame, begun = user_frame(sys._getframe(1)), time.perf_counter()
        if frame is not None:
            self._session.standstill.stop_here(frame, f"hook {hook.name}")
            hook.seconds -= time.perf_counter() - begun  # the time at the prompt is the user's

    def _look(self, hook: Hook, action: HookAction, context: HookContext) -> None:
        if action.kind == "record":
            hook.results.append(figures_of(context))
            return
        for name, layer, tensor in tensors_at(self._session, hook, context):
            (size,) = measure([tensor])
            hook.results.append({"step": context.step, "name": name, **size._asdict()})
            if action.kind == "track gradients" and self.tracked is not None:
                self.tracked(name, tensor)
            elif action.kind == "inspect" and self.inspected is not None:
                self.inspected(tensor, name, layer, str(context.moment))

    def _tell_change(self, number: int, hook: Hook, action: HookAction, step: int, done: str) -> None:
        """Say what was changed, and let `perturbed?` list it."""
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
