"""Hooks as a user writes them: when something happens, at which layers, and what is done then."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from layerstep.errors import UserError
from layerstep.expressions.expression import Expression
from layerstep.module_paths.where import Where

__all__ = ["AlertSeverity", "Hook", "HookAction", "HookBuilder", "HookContext", "HookTrigger", "Moment"]

RESULTS = 100
"""Results of a hook that are kept."""
VARIABLES = ("loss", "grad_norm", "memory_mb", "step", "lr")
"""What a condition can ask about, besides `isfinite`."""


class AlertSeverity(StrEnum):
    """How much an alert matters."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Moment(StrEnum):
    """Where a hook is asked."""

    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"
    """The gradients are complete, and the optimizer is about to step."""


@dataclass(frozen=True, slots=True)
class HookTrigger:
    """When a hook acts. Conditions are asked at every training step, before the optimizer acts."""

    moment: Moment
    every: int = 1
    is_once: bool = False
    condition: Expression | None = None

    @classmethod
    def every_forward(cls) -> HookTrigger:
        """Whenever a layer has returned."""
        return cls(Moment.FORWARD)

    @classmethod
    def every_backward(cls) -> HookTrigger:
        """Whenever the backward pass leaves a layer."""
        return cls(Moment.BACKWARD)

    @classmethod
    def every_n_steps(cls, n: int) -> HookTrigger:
        """In every n-th training step: the n-th, the 2n-th."""
        if n < 1:
            raise UserError("every_n_steps(n) wants a number of 1 or more")
        return cls(Moment.STEP, every=n)

    @classmethod
    def once(cls, moment: str = "step") -> HookTrigger:
        """At the first `forward`, `backward` or `step`."""
        return cls(Moment(moment), is_once=True)

    @classmethod
    def expression(cls, text: str) -> HookTrigger:
        """Where an expression of loss, grad_norm, memory_mb, step, lr and isfinite() holds."""
        condition = Expression.parse(text)
        unknown = set(condition.code.co_names) - {*VARIABLES, "isfinite", "abs", "min", "max"}
        if unknown:
            raise UserError(
                f"a hook knows no {', '.join(sorted(unknown))}", f"it knows {', '.join(VARIABLES)}"
            )
        return cls(Moment.STEP, condition=condition)

    @classmethod
    def loss(cls, *, above: float | None = None, below: float | None = None) -> HookTrigger:
        """Where the loss is above or below a number."""
        return cls._compared("loss", above, below)

    @classmethod
    def gradient_norm(cls, *, above: float | None = None, below: float | None = None) -> HookTrigger:
        """Where the norm of all gradients is above or below a number."""
        return cls._compared("grad_norm", above, below)

    @classmethod
    def memory(cls, *, above_mb: float) -> HookTrigger:
        """Where the process, or the GPU if there is one, has more than so many MB in use."""
        return cls._compared("memory_mb", above_mb, None)

    @classmethod
    def step_range(cls, first: int, last: int) -> HookTrigger:
        """From one training step to another, both included."""
        return cls.expression(f"{int(first)} <= step <= {int(last)}")

    @classmethod
    def not_finite(cls) -> HookTrigger:
        """Where the loss or a gradient is NaN or infinite."""
        return cls.expression("not isfinite(loss) or not isfinite(grad_norm)")

    @classmethod
    def _compared(cls, name: str, above: float | None, below: float | None) -> HookTrigger:
        parts = [f"{name} > {above!r}"] * (above is not None) + [f"{name} < {below!r}"] * (below is not None)
        if not parts:
            raise UserError(f"{name}: above or below which number?")
        return cls.expression(" or ".join(parts))

    def __str__(self) -> str:
        if self.condition is not None:
            return self.condition.text
        often = f"every {self.every} steps" if self.every > 1 else f"every {self.moment}"
        return f"first {self.moment}" if self.is_once else often


@dataclass(frozen=True, slots=True)
class HookContext:
    """What a callback is given. It may read all of it; what it changes, it changes in the run."""

    hook: str
    step: int
    layer: str = ""
    moment: Moment = Moment.STEP
    value: Any = None
    """The output of the layer, or the gradient at it."""
    loss: float | None = None
    grad_norm: float | None = None


@dataclass(frozen=True, slots=True)
class HookAction:
    """What a hook does. Those that change the run say so, and `perturbed?` lists them."""

    kind: str
    message: str = ""
    severity: AlertSeverity = AlertSeverity.WARNING
    path: Path | None = None
    function: Callable[[HookContext], Any] | None = None
    number: float = 0.0

    @classmethod
    def inspect(cls) -> HookAction:
        """Inspect the output of the layer, or the gradient at it; at a step, the gradients of its layers."""
        return cls("inspect")

    @classmethod
    def track_gradients(cls) -> HookAction:
        """Keep mean, max and norm of the gradients of the layers; of all, without patterns."""
        return cls("track gradients")

    @classmethod
    def record(cls) -> HookAction:
        """Keep loss and gradient norm of the step, or the figures of the layer's output."""
        return cls("record")

    @classmethod
    def snapshot(cls, folder: str | Path) -> HookAction:
        """Write the layer's output to a folder; at a step, the state of the models and of the optimizer."""
        return cls("snapshot", path=Path(folder))

    @classmethod
    def alert(cls, message: str, severity: str = AlertSeverity.WARNING) -> HookAction:
        """Send an alert: `info`, `warning` or `critical`."""
        return cls("alert", message, AlertSeverity(severity))

    @classmethod
    def callback(cls, function: Callable[[HookContext], Any]) -> HookAction:
        """Call a function."""
        return cls("callback", function=function)

    @classmethod
    def pause(cls) -> HookAction:
        """Stop at the prompt."""
        return cls("pause")

    @classmethod
    def replace_nonfinite(cls, value: float = 0.0) -> HookAction:
        """Changes the run: put a number in place of NaN and Inf.

        At a step, in the gradients; with `every_forward()`, in what the layers return.
        """
        return cls("replace", number=value)

    @classmethod
    def clip(cls, max_norm: float) -> HookAction:
        """Changes the run: scale the gradients down to a norm."""
        if not max_norm > 0:
            raise UserError("clip(max_norm) wants a number above 0")
        return cls("clip", number=max_norm)

    @classmethod
    def skip_step(cls) -> HookAction:
        """Changes the run: the optimizer finds no gradients in this step, so it leaves all as it is.

        An optimizer that computes gradients itself, by a closure, is not stopped by this.
        """
        return cls("skip")

    @classmethod
    def lower_learning_rate(cls, factor: float = 0.5) -> HookAction:
        """Changes the run: multiply the learning rates. A scheduler may set them again."""
        if not 0 < factor < 1:
            raise UserError("lower_learning_rate(factor) wants a number between 0 and 1")
        return cls("lower rate", number=factor)

    @classmethod
    def restore(cls, every: int = 50) -> HookAction:
        """Changes the run: go back to the last healthy snapshot of models and optimizer, and skip the step.

        A snapshot is kept every so many steps in which the hook does not act. It needs as much memory as the
        models and the state of the optimizer.
        """
        if every < 1:
            raise UserError("restore(every) wants a number of 1 or more")
        return cls("restore", number=every)

    @property
    def changes_the_run(self) -> bool:
        return self.kind in ("replace", "clip", "skip", "lower rate", "restore")

    def fits(self, moment: Moment) -> bool:
        """Can it act then?"""
        is_output = self.kind == "replace" and moment is Moment.FORWARD
        return moment is Moment.STEP or is_output or not self.changes_the_run

    def __str__(self) -> str:
        return f"{self.kind} {self.message!r}" if self.message else self.kind


@dataclass(slots=True, eq=False)
class Hook:
    """A hook and what it has done."""

    name: str
    trigger: HookTrigger
    actions: tuple[HookAction, ...]
    patterns: tuple[Where, ...] = ()
    max_executions: int | None = None
    enabled: bool = True
    executions: int = 0
    seconds: float = 0.0
    errors: int = 0
    last_step: int = 0
    error: str = ""
    """Why it is disabled, if it raised."""
    results: deque[Any] = field(default_factory=lambda: deque(maxlen=RESULTS))
    """What its actions have kept, the last hundred."""

    @property
    def is_done(self) -> bool:
        """Has it acted as often as it may?"""
        most = 1 if self.trigger.is_once else self.max_executions
        return most is not None and self.executions >= most

    @property
    def is_active(self) -> bool:
        return self.enabled and not self.is_done

    @property
    def changes_outputs(self) -> bool:
        """Does it act on what layers return?"""
        return self.trigger.moment is Moment.FORWARD and any(each.changes_the_run for each in self.actions)


class HookBuilder:
    """Builds a hook.

    hook = (
        HookBuilder("attention")
        .trigger(HookTrigger.every_forward())
        .action(HookAction.inspect())
        .layer_patterns(["**.attn"])
        .max_executions(100)
        .build()
    )
    session.hooks.register_hook(hook)
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._trigger: HookTrigger | None = None
        self._actions: list[HookAction] = []
        self._patterns: tuple[Where, ...] = ()
        self._most: int | None = None

    def trigger(self, trigger: HookTrigger) -> Self:
        """When it acts."""
        self._trigger = trigger
        return self

    def action(self, action: HookAction) -> Self:
        """What it does; several are done in their order."""
        self._actions.append(action)
        return self

    def layer_patterns(self, patterns: Sequence[str]) -> Self:
        """The layers that it is about, each as WHERE of `break`: a path, a glob, /regex/ or type:Class."""
        self._patterns = tuple(map(Where.parse, patterns))
        return self

    def max_executions(self, count: int) -> Self:
        """How often it acts at most."""
        if count < 1:
            raise UserError("max_executions(n) wants a number of 1 or more")
        self._most = count
        return self

    def build(self) -> Hook:
        """The hook, checked."""
        if self._trigger is None or not self._actions:
            missing = "trigger" if self._trigger is None else "action"
            raise UserError(f"the hook {self._name!r} has no {missing}", f"HookBuilder(name).{missing}(…)")
        moment = self._trigger.moment
        late = next((each for each in self._actions if not each.fits(moment)), None)
        if late is not None:
            raise UserError(
                f"{late.kind} acts before a step of an optimizer, not at a {moment}",
                "use a trigger on steps: every_n_steps(1), not_finite(), gradient_norm(above=…)",
            )
        return Hook(self._name, self._trigger, tuple(self._actions), self._patterns, self._most)
