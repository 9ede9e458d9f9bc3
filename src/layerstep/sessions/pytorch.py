"""A debugger for a hand-written training loop: context managers, checks between lines, one report."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from layerstep.api import anomaly_detection
from layerstep.config import is_disabled
from layerstep.doctor.finding import Finding, Severity
from layerstep.doctor.watch import watching
from layerstep.gradients.flow import LayerGradient, Thresholds
from layerstep.memory.profiler import MemoryProfiler, memory_tracking
from layerstep.nonfinite.detection import Detection
from layerstep.profile.profiler import Profiler, profiling
from layerstep.sessions.checks import (
    GradientChecker,
    MemoryUse,
    ParameterCheck,
    check_parameters,
    memory_use,
    sizes_of_gradients,
)
from layerstep.sessions.events import DebugEvent, Events
from layerstep.sessions.forward_pass import LayerOutput, call, call_watched
from layerstep.sessions.plain_data import as_json, write
from layerstep.sessions.tensor_record import TensorRecord, look_at, record_fields
from layerstep.tensors.finite import is_finite

__all__ = ["PyTorchDebugger", "create_pytorch_debugger", "debug_context", "debug_training_session"]

MOST_NORMS = 2000
"""Norms of `check_gradients` that are kept."""


class PyTorchDebugger:
    """Checks a training loop where the loop asks for it.

        debugger = create_pytorch_debugger(logger=logging.getLogger("train"))
        with debugger.anomaly_detection():
            loss = loss_fn(model(inputs), targets)
            loss.backward()
        debugger.check_gradients(model, gradient_threshold=1.0)

    It reads and notes; it never changes a value. What is switched off costs nothing.
    """

    def __init__(
        self,
        logger: logging.Logger | None = None,
        debug_mode: bool = False,
        *,
        enable_anomaly_detection: bool = True,
        enable_profiling: bool = False,
        enable_memory_tracking: bool = True,
        enable_gradient_checking: bool = True,
        log_dir: str | Path | None = None,
    ) -> None:
        self.enable_anomaly_detection = enable_anomaly_detection
        self.enable_profiling = enable_profiling
        self.enable_memory_tracking = enable_memory_tracking
        self.enable_gradient_checking = enable_gradient_checking
        self.log_dir = log_dir
        self._events = Events(logger, verbose=debug_mode)
        self._checker = GradientChecker()
        self._layers: list[LayerOutput] = []
        self._profiles: list[str] = []
        self._memory: list[str] = []
        self._norms: list[float] = []

    @property
    def events(self) -> tuple[DebugEvent, ...]:
        """What was noticed, the oldest first."""
        return self._events.last

    @property
    def layers(self) -> tuple[LayerOutput, ...]:
        """The modules in the last `debug_forward_pass`, in the order in which they returned."""
        return tuple(self._layers)

    # --- blocks ---

    @contextlib.contextmanager
    def anomaly_detection(self, enabled: bool | None = None) -> Iterator[Detection]:
        """Find NaN and Inf in this block, and the operation and line that made each."""
        if not (self.enable_anomaly_detection if enabled is None else enabled):
            yield Detection()
            return
        with anomaly_detection() as found:
            try:
                yield found
            finally:
                for each in found.findings:
                    self._events.add("anomaly", str(each), is_anomaly=True, layer=each.layer, value=each.kind)

    @contextlib.contextmanager
    def profiling(
        self, enabled: bool | None = None, output_file: str | Path | None = None
    ) -> Iterator[Profiler]:
        """Time the modules that are called in this block; `.trace.json` is for Perfetto."""
        if not (self.enable_profiling if enabled is None else enabled):
            yield Profiler()
            return
        file = self._path(output_file) if output_file is not None else None
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
        with profiling(None, file) as profiler:
            yield profiler
        self._profiles.append(str(profiler.report()))
        self._events.add("profile", f"{profiler.report().steps} steps were timed")

    @contextlib.contextmanager
    def memory_tracking(self, enabled: bool | None = None) -> Iterator[MemoryProfiler]:
        """Measure the memory of this block."""
        if not (self.enable_memory_tracking if enabled is None else enabled):
            yield MemoryProfiler()
            return
        with memory_tracking() as profiler:
            yield profiler
        report = profiler.report()
        self._memory.append(str(report))
        for leak in report.leaks():
            self._events.add("leak", f"{leak.tensors:,} × {leak.first}, {leak.holder}", is_anomaly=True)

    # --- checks ---

    def check_gradients(self, model: nn.Module, gradient_threshold: float = 1.0) -> float:
        """The norm of all gradients; what is wrong with them is noted. 0 if checks are off.

        A norm above the threshold is noted as a reason to clip, not as a fault: healthy trainings exceed 1.
        """
        if not self.enable_gradient_checking:
            return 0.0
        found = self._checker.check(model)
        self._norms.append(found.norm)
        del self._norms[:-MOST_NORMS]
        for kind, names in (
            ("gradient_nonfinite", found.nonfinite),
            ("gradient_explosion", found.exploding),
            ("gradient_vanishing", found.vanishing),
        ):
            if names:
                text = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
                self._events.add(kind, text, is_anomaly=True, parameters=names)
        if found.norm > gradient_threshold:
            message = f"the norm {found.norm:.3g} is above {gradient_threshold:g}"
            self._events.add("gradient_norm", message, gradient_norm=found.norm, threshold=gradient_threshold)
        return found.norm

    def check_model_parameters(self, model: nn.Module) -> ParameterCheck:
        """Look for NaN and Inf in the parameters."""
        found = check_parameters(model)
        for kind, names in (("parameter_nan", found.nan_parameters), ("parameter_inf", found.inf_parameters)):
            if names:
                self._events.add(kind, ", ".join(names[:5]), is_anomaly=True, parameters=names)
        return found

    def check_gradient_explosion(self, model: nn.Module, threshold: float = 10.0) -> tuple[str, ...]:
        """The parameters whose gradient has a norm above the threshold, or is not finite."""
        found = GradientChecker(Thresholds(0.0, threshold, of_norm=True)).check(model)
        return found.nonfinite + found.exploding

    def check_gradient_vanishing(self, model: nn.Module, threshold: float = 1e-6) -> tuple[str, ...]:
        """The parameters whose gradient has a norm below the threshold."""
        return GradientChecker(Thresholds(threshold, math.inf, of_norm=True)).check(model).vanishing

    # --- figures ---

    def analyze_tensor(self, tensor: Tensor, name: str = "tensor") -> TensorRecord:
        """The figures of a tensor. NaN and Inf in it are noted."""
        found = TensorRecord(**record_fields(look_at(tensor), name))
        if not found.is_finite:
            text = f"{name} has {found.nan:,} NaN and {found.inf:,} Inf"
            self._events.add("tensor_nonfinite", text, is_anomaly=True, nan=found.nan, inf=found.inf)
        return found

    def analyze_model_parameters(self, model: nn.Module) -> dict[str, TensorRecord]:
        """The figures of each parameter."""
        return {name: self.analyze_tensor(p, name) for name, p in model.named_parameters()}

    def analyze_gradients(self, model: nn.Module) -> dict[str, LayerGradient]:
        """Mean, largest value and norm of each parameter's gradient, and whether it vanishes or explodes."""
        return sizes_of_gradients(model)

    def profile_memory_usage(self, model: nn.Module) -> MemoryUse:
        """The bytes of the model's parameters, gradients and buffers."""
        return memory_use(model)

    # --- passes ---

    def debug_forward_pass(self, model: nn.Module, inputs: Any, layer_hooks: bool = True) -> Any:
        """Call the model: a tuple is its arguments, a dictionary its keywords. Its output is returned.

        `layer_hooks` notes in `layers` what goes into each module, what comes out, and its time.
        """
        begun = time.perf_counter()
        if layer_hooks and not is_disabled():
            output, self._layers = call_watched(model, inputs)
            broken = [each.name for each in self._layers if not each.is_finite]
            if broken:
                text = f"first in {broken[0]}"
                self._events.add("activation_nonfinite", text, is_anomaly=True, layers=broken)
        else:
            output = call(model, inputs)
        seconds = time.perf_counter() - begun
        self._events.add("forward", f"took {1e3 * seconds:.3g} ms", seconds=seconds)
        return output

    def debug_backward_pass(self, loss: Tensor, retain_graph: bool = False) -> None:
        """Run `loss.backward()`; a loss that is not finite is noted."""
        if not is_finite(loss):
            self._events.add("loss_nonfinite", f"the loss is {loss.detach().tolist()}", is_anomaly=True)
        begun = time.perf_counter()
        loss.backward(retain_graph=retain_graph)
        seconds = time.perf_counter() - begun
        self._events.add("backward", f"took {1e3 * seconds:.3g} ms", seconds=seconds)

    def debug_training_step(
        self,
        model: nn.Module,
        inputs: Any,
        targets: Any,
        loss_fn: Callable[[Any, Any], Tensor],
        optimizer: Optimizer,
        gradient_threshold: float = 1.0,
    ) -> dict[str, Any]:
        """One whole step: clear, forward, loss, backward, check, step. It does not clip and skips nothing."""
        before = self._events.anomalies
        optimizer.zero_grad()
        with self.anomaly_detection():
            loss = loss_fn(self.debug_forward_pass(model, inputs, layer_hooks=False), targets)
            self.debug_backward_pass(loss)
        norm = self.check_gradients(model, gradient_threshold)
        optimizer.step()
        return {
            "loss": float(loss.detach()),
            "gradient_norm": norm,
            "anomalies": self._events.anomalies - before,
        }

    # --- what was found ---

    def add_event(self, event_type: str, message: str, *, is_anomaly: bool = False, **data: Any) -> None:
        """Note something of your own: it is logged and reported with the rest."""
        self._events.add(event_type, message, is_anomaly=is_anomaly, **data)

    def add_finding(self, finding: Finding) -> None:
        """Note what the doctor has found."""
        is_anomaly = finding.severity.rank >= Severity.WARNING.rank
        text = f"{finding.rule}: {finding.text}"
        where = str(finding.where)
        self._events.add("finding", text, is_anomaly=is_anomaly, where=where, step=finding.first_step)

    def get_debug_summary(self) -> dict[str, Any]:
        """What is switched on, and how often each kind of event came."""
        return {
            "anomaly_detection": self.enable_anomaly_detection,
            "profiling": self.enable_profiling,
            "memory_tracking": self.enable_memory_tracking,
            "gradient_checking": self.enable_gradient_checking,
            "total_anomalies": self._events.anomalies,
            "events": dict(self._events.counts),
            "gradient_checks": len(self._norms),
            "largest_gradient_norm": max(filter(math.isfinite, self._norms), default=None),
            "profiles": len(self._profiles),
            "memory_reports": len(self._memory),
        }

    def save_debug_report(self, filename: str | Path | None = None) -> Path:
        """Write the summary, the events and the reports as JSON, into `log_dir` if there is one."""
        data: Mapping[str, Any] = {
            "summary": self.get_debug_summary(),
            "events": self.events,
            "gradient_norms": self._norms,
            "layers": self._layers,
            "profiles": self._profiles,
            "memory": self._memory,
        }
        return write(as_json(data), self._path(filename or "debug_report.json"))

    def _path(self, name: str | Path) -> Path:
        return Path(self.log_dir or ".") / name

    def clear_debug_data(self) -> None:
        """Forget all that was noted."""
        self._events.clear()
        for notes in (self._layers, self._profiles, self._memory, self._norms):
            notes.clear()


def create_pytorch_debugger(
    logger: logging.Logger | None = None, debug_mode: bool = True, **options: Any
) -> PyTorchDebugger:
    """A `PyTorchDebugger` that logs all it does, not only what is wrong; takes its options."""
    return PyTorchDebugger(logger, debug_mode, **options)


@contextlib.contextmanager
def debug_training_session(
    model: nn.Module, logger: logging.Logger | None = None, debug_mode: bool = True, **options: Any
) -> Iterator[PyTorchDebugger]:
    """All that is enabled, for a whole training; at the end the parameters are checked.

    With a `log_dir`, the report is saved there.
    """
    debugger = create_pytorch_debugger(logger, debug_mode, **options)
    with debugger.anomaly_detection(), debugger.profiling(), debugger.memory_tracking():
        yield debugger
    debugger.check_model_parameters(model)
    if debugger.log_dir is not None:
        debugger.save_debug_report()


@contextlib.contextmanager
def debug_context(
    level: str = "basic", *, logger: logging.Logger | None = None, **options: Any
) -> Iterator[PyTorchDebugger]:
    """Let the doctor watch the training in this block. What it finds is an event of the debugger.

    `level` is the budget of the doctor: `basic`, `advanced` or `extreme`. The options are the debugger's.
    """
    debugger = create_pytorch_debugger(logger, **options)
    if is_disabled():
        yield debugger
        return
    with watching(level) as watch:
        watch.doctor.listeners.append(debugger.add_finding)
        yield debugger
