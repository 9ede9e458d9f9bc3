"""The stability checker as a library: values near overflow or underflow, and lost digits."""

from __future__ import annotations

import warnings
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from layerstep._torch import is_tracing, modes_off
from layerstep._torch.tensors import is_tensor
from layerstep.calls.stack import Frame
from layerstep.config import is_disabled, load_config
from layerstep.engine.messages import Message
from layerstep.engine.points import Record
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.module_paths.where import Where
from layerstep.precision.cancellation import Hazards
from layerstep.precision.shadow_run import Shadower
from layerstep.precision.stability import (
    Kind,
    Severity,
    StabilityIssue,
    Thresholds,
    check_update,
    check_values,
    computes_in_f16,
    worst_first,
)
from layerstep.rerun.kv_caches import CallProgress
from layerstep.rerun.module_call import rerun
from layerstep.tensors.observing import observing
from layerstep.tensors.shapes import tensors_in
from layerstep.training_steps.steps import Stepped
from layerstep.views import Notice

__all__ = ["Kind", "Severity", "StabilityChecker", "StabilityIssue", "Thresholds"]

MOST_ISSUES = 1_000
SECONDS = 60.0


class StabilityChecker:
    """Looks for NaN, Inf, overflow, underflow, lost digits and cancellation.

        checker = StabilityChecker(model)
        with checker:                         # every layer's output, and every gradient at optimizer.step()
            train()
        for issue in checker.get_issues():
            print(issue.layer, issue.kind, issue.evidence)

    `check_tensor(x, "logits")` looks at one tensor, without a model too. `check_operations(x)` runs the model
    once on copies, computes each op also in float64, and names the op and line that loses digits. The
    thresholds are the fields of `Thresholds`. It keeps words, never tensors, and one issue for each layer and
    kind.
    """

    def __init__(self, model: nn.Module | None = None, **thresholds: float) -> None:
        if model is not None and not isinstance(model, nn.Module):
            raise UserError(f"StabilityChecker needs an nn.Module, not {type(model).__name__}")
        self.model = model
        self.thresholds = Thresholds.of(thresholds)
        self._in_f16 = False
        self._issues: dict[tuple[str, Kind, str], StabilityIssue] = {}
        self._session: Session | None = None

    def check_tensor(self, tensor: Tensor, name: str = "") -> list[StabilityIssue]:
        """Find what is wrong or at risk in a tensor, and keep it for `get_issues()`."""
        if not is_tensor(tensor):
            raise UserError(f"check_tensor needs a tensor, not {type(tensor).__name__}")
        with observing():
            return self._keep(check_values(tensor, name, thresholds=self.thresholds))

    def check_operations(self, *args: Any, **kwargs: Any) -> list[StabilityIssue]:
        """Run the model on copies of these arguments, without a trace, and find ops that lose digits."""
        model = self._model("check_operations() runs a model")
        session = self._session or self._open(model)
        hazards = Hazards(
            session.run.models.path_of, thresholds=self.thresholds, has_gradients=torch.is_grad_enabled()
        )
        watcher = Shadower(hazards.see, seconds=SECONDS)
        with modes_off():
            done = rerun(
                session, model, args=args, kwargs=kwargs, progress=CallProgress.BEFORE, watcher=watcher
            )
        errors = [watcher.error_of(tensor) for _, tensor in tensors_in(done.output)]
        known = [error for error in errors if error is not None]
        return self._keep(hazards.settle(max(known) if known and not watcher.ended else None))

    def get_issues(self) -> list[StabilityIssue]:
        """All that was found since the last `clear()`, the worst first."""
        return worst_first(self._issues.values())

    def clear(self) -> None:
        """Forget what was found."""
        self._issues.clear()

    def attach(self) -> Self:
        """Check each layer's output and the gradients of each optimizer step, until `detach()`."""
        model = self._model("attach() watches a model")
        if self._session is None and not is_disabled():
            session = self._session = self._open(model)
            point = session.points.add(Record(Where.parse("**"), action=self._see, set_by="StabilityChecker"))
            session.intake.set_or_leave_pending(point)
            session.attach()
            session.run.training.before.append(self._is_about_to_step)
        return self

    def detach(self) -> None:
        """Remove everything from the model; keep the issues."""
        if self._session is not None:
            self._session.detach()
            self._session = None

    def __enter__(self) -> Self:
        return self.attach()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    def _model(self, what: str) -> nn.Module:
        if self.model is None:
            raise UserError(what, "StabilityChecker(model)")
        return self.model

    @staticmethod
    def _open(model: nn.Module) -> Session:
        session = Session(config=load_config())
        session.listen(_warn)
        session.add_model(model)
        return session

    def _see(self, frame: Frame) -> None:
        path = frame.path.partition("|")[0]
        for place, tensor in tensors_in(frame.output):
            self._keep(
                check_values(tensor, path + place, thresholds=self.thresholds, in_f16=self._computes_in_f16())
            )

    def _is_about_to_step(self, stepped: Stepped) -> None:
        optimizer = stepped.optimizer
        if self.model is None or optimizer is None or is_tracing():
            return
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        with observing():
            for name, parameter in self.model.named_parameters():
                if id(parameter) in own and parameter.grad is not None:
                    grad = check_values(
                        parameter.grad,
                        f"{name}.grad",
                        role="gradient",
                        thresholds=self.thresholds,
                        in_f16=self._computes_in_f16(),
                    )
                    self._keep(grad + check_update(parameter, name, optimizer, thresholds=self.thresholds))

    def _computes_in_f16(self) -> bool:
        """Remembers a yes: the gradients of a step are checked after its autocast block."""
        if not self._in_f16 and self.model is not None:
            self._in_f16 = computes_in_f16(self.model.parameters())
        return self._in_f16

    def _keep(self, issues: list[StabilityIssue]) -> list[StabilityIssue]:
        for issue in issues:
            if len(self._issues) < MOST_ISSUES:
                self._issues.setdefault((issue.layer, issue.kind, issue.place), issue)
        return issues


def _warn(message: Message) -> None:
    """There is no screen here, so a mistake of ours becomes a Python warning."""
    if isinstance(message.view, Notice) and message.view.level == "error":
        warnings.warn(f"layerstep: {message.view.text}; {message.view.hint}", RuntimeWarning, stacklevel=2)
