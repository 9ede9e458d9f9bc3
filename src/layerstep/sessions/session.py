"""A debug session: start it, train, stop it, read the report."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from torch import nn

from layerstep._torch import is_tracing
from layerstep.automation.alerts import Alert
from layerstep.automation.hook import AlertSeverity
from layerstep.automation.running import Hooks, hooks_of
from layerstep.calls.stack import Frame
from layerstep.config import is_disabled
from layerstep.doctor.budget import Level
from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Finding, Severity
from layerstep.doctor.log import Log
from layerstep.doctor.views import curve
from layerstep.doctor.watching import doctor_of
from layerstep.engine.points import Record
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.frontends.choose import choose_frontend, open_session
from layerstep.gradients.debugger import GradientDebugger
from layerstep.gradients.recorder import named_parameters
from layerstep.inspector import TensorInspector, TensorReport
from layerstep.module_paths.where import Where
from layerstep.profile.profiler import Profiler
from layerstep.sessions.config import DebugConfig
from layerstep.sessions.diagnostics import ModelDiagnostics
from layerstep.sessions.report import Report
from layerstep.sessions.tensor_record import TensorRecord, record_fields
from layerstep.tensors.observing import observing
from layerstep.tensors.shapes import tensors_in
from layerstep.training_steps.steps import Stepped
from layerstep.views import Notice, Plot

__all__ = ["DebugSession", "debug_session"]

_SEVERITY = {Severity.INFO: AlertSeverity.INFO, Severity.WARNING: AlertSeverity.WARNING}


class DebugSession:
    """Watches a training between `start()` and `stop()`, which returns a `Report`.

        session = DebugSession(DebugConfig(sampling_rate=0.1), model)
        session.start()
        train()
        print(session.stop())

    Without a model, every model that is called is watched. Findings are shown on `output` (stderr) when they
    arise. It changes nothing in the run, and with `LAYERSTEP=0` it does nothing.
    """

    def __init__(
        self,
        config: DebugConfig | None = None,
        model: nn.Module | None = None,
        *,
        output: IO[str] | None = None,
    ) -> None:
        if model is not None and not isinstance(model, nn.Module):
            raise UserError(f"DebugSession wants an nn.Module, not {type(model).__name__}")
        self.config = config = config or DebugConfig()
        self.model = model
        self.tensor_inspector = TensorInspector(config.max_tracked_tensors)
        self.gradient_debugger = GradientDebugger(
            model, max_frames=config.max_gradient_history, thresholds=config.thresholds
        )
        self.model_diagnostics = ModelDiagnostics(
            model, max_history=config.max_gradient_history, samples=config.samples
        )
        self.profiler = Profiler(model)
        self._output = output
        self._session: Session | None = None
        self._log: Log | None = None
        self._log_file: IO[str] | None = None
        self._report: Report | None = None
        self.is_on = False
        """Has it started, and not stopped yet?"""

    @property
    def hooks(self) -> Hooks:
        """The hooks of this session, and their alerts: `hooks.register_hook(hook)`, `hooks.alerts`."""
        return hooks_of(self._opened())

    def _opened(self) -> Session:
        """The debugger below; it does nothing before `start()`."""
        if self._session is not None:
            return self._session
        self._session, screen = open_session(batch=True, output=self._output)
        session, config = self._session, self.config
        if self.model is not None:
            session.add_model(self.model)
        hooks = hooks_of(session)
        hooks.inspected = self.tensor_inspector.inspect_tensor
        hooks.tracked = self.gradient_debugger.record_gradient_flow
        hooks.open_prompt = lambda: choose_frontend(session, screen, input=None, use_pipe=False)
        if config.enable_tensor_inspection:
            point = session.points.add(
                Record(Where.parse("**"), action=self._inspect, set_by="debug_session")
            )
            session.intake.set_or_leave_pending(point)
        if config.enable_model_diagnostics:
            doctor = doctor_of(session)
            doctor.listeners.append(self._found)
            doctor.steppers.append(self._stepped)
            self.model_diagnostics.watch_with(doctor)
        return session

    def start(self) -> Self:
        """Watch from now on."""
        if self.is_on or is_disabled():
            return self
        self.is_on = True
        session = self._opened()
        session.attach(discover=self.model is None)
        if self.config.enable_gradient_debugging:
            session.run.training.before.append(self._record_gradients)
        if self.config.enable_model_diagnostics:
            self._diagnose(session)
        if self.config.enable_profiling:
            self.profiler.start()
        return self

    def stop(self) -> Report:
        """Take everything off the run, and report; to `output_dir` too, if there is one."""
        if not self.is_on or self._session is None:
            return self._report or Report(steps=0)
        self.is_on = False
        session, doctor = self._session, self.model_diagnostics.doctor
        if doctor is not None:
            doctor.finish()
        for text in self.hooks.never_acted():
            session.say(Notice(f"a hook never acted: {text}", level="warn"))
        session.detach()
        self.hooks.alerts.close()
        self.profiler.stop()
        self._report = report = self._reported(session.run.training.count)
        self._end_log(report)
        try:
            self._write(report)
        except UserError as error:  # a full disk must not end the program after its training
            session.say(Notice(f"the report is not written: {error}", level="warn"))
        session.close()
        return report

    def _write(self, report: Report) -> None:
        if self.config.output_dir is None:
            return
        report.save(Path(self.config.output_dir) / "report.json")
        if self.config.enable_visualization:
            report.save(Path(self.config.output_dir) / "report.html")

    def _diagnose(self, session: Session) -> None:
        try:
            if self.model is not None and self.model_diagnostics.architecture is None:
                self.model_diagnostics.record_architecture()
        except Exception as error:
            session.fail(error)
            return
        doctor_of(session).start(Level(self.config.level))
        if self.config.output_dir is not None:
            self._begin_log(session, Path(self.config.output_dir))

    def _begin_log(self, session: Session, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._log_file = (folder / "log.jsonl").open("w", encoding="utf-8")
        except OSError as error:
            session.say(Notice(f"the steps are not logged in {folder}: {error.strerror}", level="warn"))
            return
        self._log = Log(self._log_file)
        self._log.begins(sys.argv[0], self.config.level)

    def _end_log(self, report: Report) -> None:
        log, self._log = self._log, None
        doctor = self.model_diagnostics.doctor
        if log is None or self._log_file is None or doctor is None:
            return
        log.ends(list(report.findings), self.model_diagnostics.health.score, doctor.budget.cost)
        with contextlib.suppress(OSError):
            self._log_file.close()

    def _stepped(self, step: StepFacts) -> None:
        if self._log is not None:
            self._log.step(step)

    def _found(self, finding: Finding) -> None:
        """Log a finding, and send it to the sinks of alerts; the screen has shown it."""
        if self._log is not None:
            self._log.finding(finding)
        severity = _SEVERITY.get(finding.severity, AlertSeverity.CRITICAL)
        self.hooks.alerts.send(
            Alert(finding.rule, severity, finding.text, finding.first_step, layer=str(finding.where))
        )

    def _inspect(self, frame: Frame) -> None:
        """A module has returned."""
        owner = self._opened().run.models.owner_of(frame.module) if frame.module is not None else None
        if owner is None or not self.config.samples(owner.forwards):
            return
        for place, tensor in tensors_in(frame.output, most=1):
            path = frame.path.partition("|")[0]
            self.tensor_inspector.inspect_tensor(tensor, f"{path}.output{place}", path, "forward", brief=True)

    def _record_gradients(self, stepped: Stepped) -> None:
        if stepped.number != 1 or is_tracing() or not self.config.samples(stepped.steps + 1):
            return
        with observing():
            if self.model is not None:
                self.gradient_debugger.record_step(stepped.steps)
                return
            for each in named_parameters(self._opened()):
                if each.parameter.grad is not None:
                    self.gradient_debugger.record_gradient_flow(each.name, each.parameter.grad)

    def _reported(self, steps: int) -> Report:
        config, diagnostics = self.config, self.model_diagnostics
        has_doctor, flow = config.enable_model_diagnostics, self.gradient_debugger.flow
        return Report(
            steps=steps,
            health=diagnostics.health if has_doctor else None,
            findings=diagnostics.findings,
            gradients=flow.summary_report() if len(flow) else None,
            tensors=tuple(map(_record, self.tensor_inspector.reports)),
            architecture=diagnostics.architecture,
            performance=diagnostics.performance,
            alerts=self.hooks.alerts.kept,
            profile=self.profiler.report() if config.enable_profiling else None,
            curves=tuple(self._curves()) if config.enable_visualization else (),
        )

    def _curves(self) -> list[Plot]:
        losses = [(m.training_step, m.loss) for m in self.model_diagnostics.performance if m.loss is not None]
        frames = self.gradient_debugger.flow.frames
        norms = [(f.step, max((layer.grad_norm for layer in f.layers), default=0.0)) for f in frames]
        found = []
        if len(losses) > 1:
            found.append(curve(losses, "loss"))
        if len(norms) > 1:
            found.append(curve(norms, "largest gradient norm of a layer"))
        return found

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _record(report: TensorReport) -> TensorRecord:
    fields = record_fields(report.summary, report.name, layer=report.layer, operation=report.operation)
    return TensorRecord(**fields)


def debug_session(
    model: nn.Module | None = None, *, output: IO[str] | None = None, **fields: Any
) -> DebugSession:
    """A session on a model; the fields are those of `DebugConfig`.

    with debug_session(model, sampling_rate=0.1) as session:
        train()
    print(session.stop())
    """
    return DebugSession(DebugConfig(**fields), model, output=output)
