"""Hands what a session records to trackers: recordings, gradients, the doctor's steps, times, plots, files.

Nothing is measured for it. In the program's thread a record costs an entry in a list; a thread for each
tracker works out the numbers and sends them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from layerstep.doctor.facts import StepFacts
from layerstep.doctor.finding import Finding
from layerstep.doctor.health import health_of
from layerstep.doctor.watching import Doctor
from layerstep.engine.instrument import Instrument
from layerstep.engine.messages import Message
from layerstep.engine.pause import Pause
from layerstep.engine.resume import Kind, Resume
from layerstep.engine.session import Session
from layerstep.exports.doctor import doctor_page
from layerstep.expressions.recordings import Recorded
from layerstep.gradients.log import GradientLog
from layerstep.gradients.recorder import RecordedGradients
from layerstep.graph.tracing import LastPicture
from layerstep.profile.state import ProfileState
from layerstep.profile.trace import chrome_trace
from layerstep.sinks import records
from layerstep.sinks.outbox import Outbox, Work
from layerstep.sinks.sink import Sink
from layerstep.training_steps.steps import Stepped
from layerstep.views import Fields, Group, Notice, Plot, View

__all__ = ["Feed"]

BATCH = 256
"""Recordings that are handed on together."""


class Feed(Instrument):
    """What goes from a session to its trackers. Without one it listens to nothing."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._boxes: list[Outbox] = []
        self._is_heard = False
        self._entries: list[tuple[int, Recorded]] = []
        self._gradients_until = 0
        self._doctor: Doctor | None = None
        self._graph: object = None
        self._files = 0

    def start(self, sinks: Iterable[tuple[str, Sink]]) -> None:
        """Hand on to these from now on."""
        self._boxes += [Outbox(name, sink) for name, sink in sinks]
        if not self._boxes:
            return
        run = self._session.run
        run.training.listen(run.training.after, self._stepped, True)
        if self._recorded not in run.recordings.listeners:
            run.recordings.listeners.append(self._recorded)
        if not self._is_heard:
            self._is_heard = True
            self._session.listen(self._heard)

    def cost(self) -> list[str]:
        return [f"records go to {self._names()}"] if self._names() else []

    def _names(self) -> str:
        return ", ".join(box.name for box in self._boxes if box.is_here)

    def resuming(self, pause: Pause, resume: Resume) -> None:
        """The run goes back to a checkpoint, which is another process: what it records is not handed on."""
        if resume.kind is Kind.BACK_STEP and (names := self._names()):
            self.stop()
            self._session.say(Notice(f"the run goes back: no more records go to {names}", level="warn"))

    def stop(self) -> None:
        """The run is over: hand on what is left, wait a bounded time, and say what was lost."""
        if not self._boxes:
            return
        run = self._session.run
        run.training.listen(run.training.after, self._stepped, False)
        run.recordings.listeners.remove(self._recorded)
        with tempfile.TemporaryDirectory(prefix="layerstep-") as folder:
            try:
                self._hand_on(whole=True)
                self._hand_on_the_end(Path(folder))
            except Exception as error:  # a bug of ours: what was handed on stays
                self._session.fail(error)
            boxes, self._boxes = self._boxes, []
            for box in boxes:
                if box.is_here:
                    self._say_of(box, box.close())

    def _say_of(self, box: Outbox, trouble: str) -> None:
        if trouble:
            self._session.say(Notice(trouble, "the run was not touched", level="warn"))
        elif not box.sent:
            hint = "`record WHERE`, `grad record`, `profile` and `doctor on` record"
            self._session.say(Notice(f"nothing was recorded for {box.name}", hint, level="warn"))
        else:
            count = "1 record is" if box.sent == 1 else f"{box.sent:,} records are"
            self._session.say(Notice(f"{count} in {box.name}", level="good"))

    # --- what happens in the run ---

    def _put(self, work: Work) -> None:
        for box in self._boxes:
            box.put(work)

    def _stepped(self, stepped: Stepped) -> None:
        self._hand_on()

    def _recorded(self, entry: Recorded) -> None:
        training = self._session.run.training
        step = training.count + 1 if training.total else entry.forward
        self._entries.append((step, entry))
        if len(self._entries) >= BATCH:
            self._hand_on_entries()

    def _heard(self, message: Message) -> None:
        if not self._boxes or message.kind == "progress":
            return
        self._hand_on()
        if message.kind == "answer":
            step = self._session.run.training.count
            for plot in _plots(message.view):
                name = ": ".join(filter(None, (message.line.strip(), plot.title))) or plot.kind
                self._put(partial(_figure, name=name, plot=plot, step=step))

    def _hand_on(self, *, whole: bool = False) -> None:
        """Hand on what has come since the last time; `whole`: also of the step that is not over."""
        for box in self._boxes:
            if trouble := box.take_trouble():
                self._session.say(Notice(trouble, "the run goes on without it", level="warn"))
        self._hand_on_entries()
        for instrument in self._session.instruments:
            if isinstance(instrument, Doctor) and self._doctor is not instrument:
                self._doctor = instrument
                instrument.listeners.append(self._found)
                instrument.steppers.append(self._watched)
            elif isinstance(instrument, RecordedGradients) and instrument.recorder is not None:
                self._hand_on_gradients(instrument.recorder.log, whole=whole)
            elif isinstance(instrument, LastPicture) and instrument.graph is not self._graph:
                self._graph = graph = instrument.graph
                if graph is not None:
                    self._put(partial(_send_graph, graph=graph))
        written = self._session.prompt.written
        for path in written[self._files :]:
            self._put(partial(_artifact, path=path))
        self._files = len(written)

    def _hand_on_entries(self) -> None:
        if self._entries:
            entries, self._entries = self._entries, []
            self._put(partial(records.send_recordings, entries=entries))

    def _hand_on_gradients(self, log: GradientLog, *, whole: bool) -> None:
        """Of a step that is over: what it changed is measured after it."""
        last = log.last_step if whole else min(log.last_step, self._session.run.training.count - 1)
        frames = log.between(self._gradients_until, last)
        if frames:
            self._gradients_until = last
            self._put(partial(records.send_gradients, log=log, frames=frames))

    def _watched(self, step: StepFacts) -> None:
        self._put(partial(records.send_step, facts=step))

    def _found(self, finding: Finding) -> None:
        self._put(partial(_finding, finding=finding))

    # --- at the end ---

    def _hand_on_the_end(self, folder: Path) -> None:
        step = self._session.run.training.count
        for name, entry in records.embeddings_of(self._session.run.recordings):
            self._put(partial(records.send_embedding, name=name, entry=entry, step=step))
        for instrument in self._session.instruments:
            if isinstance(instrument, ProfileState) and instrument.profile.steps:
                measured = instrument.measured()
                self._put(partial(_scalars, values=records.times_of(measured), step=step))
                trace = chrome_trace(measured, instrument.profile.notes)
                self._put_file(folder / "profile.trace.json", json.dumps(trace))
            elif isinstance(instrument, Doctor) and instrument.was_on:
                self._hand_on_diagnosis(instrument, folder)

    def _hand_on_diagnosis(self, doctor: Doctor, folder: Path) -> None:
        step = doctor.diagnosis.run.training_step
        health = health_of(doctor.findings, step)
        if health.score is not None:
            self._put(partial(_scalars, values={"health": float(health.score)}, step=step))
        told = [each.to_json() for each in doctor.findings]
        self._put_file(folder / "findings.json", json.dumps(told, default=str))
        self._put_file(folder / "doctor.html", doctor_page(doctor, title="doctor"))

    def _put_file(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        self._put(partial(_artifact, path=path))


def _scalars(sink: Sink, *, values: dict[str, float], step: int) -> None:
    sink.scalars(values, step)


def _figure(sink: Sink, *, name: str, plot: Plot, step: int) -> None:
    sink.figure(name, plot, step)


def _send_graph(sink: Sink, *, graph: records.ModelGraph) -> None:
    sink.graph(graph)


def _finding(sink: Sink, *, finding: Finding) -> None:
    sink.finding(finding)


def _artifact(sink: Sink, *, path: Path) -> None:
    sink.artifact(path)


def _plots(view: View) -> list[Plot]:
    if isinstance(view, Plot):
        return [view]
    if isinstance(view, Group):
        return [plot for part in view.views for plot in _plots(part)]
    if isinstance(view, Fields):
        return [plot for _, part in view.items for plot in _plots(part)]
    return []
