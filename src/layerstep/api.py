"""The library: `DebugConsole`, `attach`, `listen`, `set_trace`, `pm`, `lockstep`. Only the way in."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from torch import nn

from layerstep.automation.running import Hooks, hooks_of
from layerstep.config import is_disabled
from layerstep.crashes.catching import Crashes
from layerstep.edits.edits import Edits
from layerstep.engine.instrument import Measuring
from layerstep.engine.points import Catch
from layerstep.engine.session import Session
from layerstep.errors import Quit, UserError
from layerstep.frontends.choose import is_child, open_session
from layerstep.graph.model_graph import ModelGraph
from layerstep.graph.tracing import graph_of
from layerstep.lockstepping.result import Lockstep
from layerstep.lockstepping.running import Arguments
from layerstep.lockstepping.sides import Side, compare_sides
from layerstep.nonfinite.catching import catch_nonfinite, search_of
from layerstep.nonfinite.detection import Detection
from layerstep.points.description import described
from layerstep.points.setting import set_breakpoint
from layerstep.points.silence import silence_of
from layerstep.rerun.kv_caches import CallProgress
from layerstep.sinks.opening import close_sinks, open_sinks
from layerstep.sinks.sink import Sink
from layerstep.views import Notice, View

__all__ = ["DebugConsole", "anomaly_detection", "attach", "listen", "lockstep", "pm", "set_trace"]

_current: Session | None = None
"""The session of this process: `set_trace()` joins it instead of opening a second one."""


def use_session(session: Session | None) -> None:
    """Make a session the one that `set_trace()` joins."""
    global _current
    _current = session


class DebugConsole:
    """A debugger on one model.

        console = DebugConsole(model)
        console.breakpoint("encoder.0.attn")
        out = console.run(x)              # or:  with console: train()

    `commands` are lines taken before anyone is asked: first before the run up to the first that resumes,
    then at each stop; when they run out and there is no terminal, the console detaches.
    `input` is a text stream of lines, `output` where the text goes (stderr).
    `sinks` get what is recorded while the console is attached: `["tensorboard=runs/a", "wandb"]`, or
    objects of a class of `layerstep.sinks.sink.Sink`. Each attachment opens them, and its end closes them.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        commands: Iterable[str] | None = None,
        input: Any = None,
        output: IO[str] | None = None,
        sinks: Iterable[str | Sink] = (),
    ) -> None:
        if not isinstance(model, nn.Module):
            raise UserError(
                f"DebugConsole wants an nn.Module, not {type(model).__name__}", "hand it the model"
            )
        self.model = model
        self.session, _ = open_session(commands=commands or (), input=input, output=output)
        self.session.add_model(model)
        self._sinks = tuple(sinks)
        self._has_open_sinks = False

    @property
    def hooks(self) -> Hooks:
        """The hooks of this console, and their alerts: `hooks.register_hook(hook)`, `hooks.alerts`."""
        return hooks_of(self.session)

    def breakpoint(
        self, where: str, phase: str = "exit", *, condition: str | None = None, temporary: bool = False
    ) -> int:
        """Set a breakpoint; its number. As `break WHERE PHASE if CONDITION` at the prompt."""
        return set_breakpoint(
            self.session, where, phase, condition=condition or "", temporary=temporary
        ).number

    @contextlib.contextmanager
    def edit(self, where: str, change: Callable[[Any], Any] | Any, *, condition: str = "") -> Iterator[int]:
        """Replace what modules return, for this block; the number of the edit.

            with console.edit("encoder.0.mlp", lambda out: out * 0):
                out = model(x)

        `change` is a function of what the module returns, or a value. As `edit WHERE EXPR` at the prompt.
        """
        edits = self.session.instruments.get(Edits)
        point = edits.by_function(where, change, condition=condition)
        try:
            yield point.number
        finally:
            edits.take_back(point.number)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model with the points in effect, and take everything off again."""
        with self:
            return self.model(*args, **kwargs)

    def attach(self) -> Self:
        """Let the points take effect until `detach()`."""
        if not is_disabled():
            if not self._has_open_sinks:
                open_sinks(self.session, self._sinks)
                self._has_open_sinks = True
            use_session(self.session)
            self.session.attach()
            if self.session.prompt.script:
                self.session.start(ask=False)
        return self

    def detach(self) -> None:
        """Take everything off the model."""
        self.session.detach()
        close_sinks(self.session)
        self._has_open_sinks = False
        if _current is self.session:
            use_session(None)

    def execute(self, line: str) -> View | None:
        """Answer one line: in the paused thread if the run is paused, else here."""
        return self.submit(line).result()

    def submit(self, line: str) -> Future[View | None]:
        """Hand in one line from any thread."""
        return self.session.prompt.submit(line)

    def graph(self, *args: Any, by: str = "", **kwargs: Any) -> ModelGraph:
        """The graph of the model as it runs on these arguments: calls, operations, and what flows.

            graph = console.graph(x)
            print(len(graph.calls), graph.to_json())

        The model runs on copies, and nothing of it changes. As `graph` at the prompt, `by` is one of `grad`,
        `time`, `bytes` and `dead`.
        """
        if not args and not kwargs:
            raise UserError("`graph` wants the arguments of the model", "console.graph(x)")
        return graph_of(
            self.session, self.model, args=args, kwargs=kwargs, progress=CallProgress.BEFORE, by=by
        )

    def __enter__(self) -> Self:
        return self.attach()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self.session.run.is_attached:
                tell_silent_points(self.session)
            if isinstance(error, Exception) and not is_disabled():
                self.session.instruments.get(Crashes).left(error)
        finally:
            self.detach()
        if kind is KeyboardInterrupt and self.session.standstill.quitting is not None:
            raise Quit from None  # `quit` in another thread, which interrupts this one


def attach(model: nn.Module, **options: Any) -> DebugConsole:
    """A console whose points take effect at once, until its `detach()`; the options of `DebugConsole`."""
    return DebugConsole(model, **options).attach()


def set_trace() -> None:
    """Pause here. `PYTHONBREAKPOINT=layerstep.set_trace` makes `breakpoint()` do this."""
    global _current
    if is_disabled() or is_child():
        return
    if _current is None:
        _current, _ = open_session()
        _current.attach()
    was_attached = _current.run.is_attached
    _current.standstill.stop_here(sys._getframe(1), "set_trace()")
    if was_attached and _current.prompt.frontend is None and not _current.run.is_attached:
        _current.say(Notice("there is no terminal to ask at, so the run goes on", level="warn"))


def listen(*, hold: bool = False) -> None:
    """Let `layerstep attach` reach this process, from another terminal of the same user.

    It opens a unix socket that only this user can use. Until a client attaches, the run goes on as it would
    without; `hold` lets a stop wait for a client, however long. `LAYERSTEP_LISTEN=1` does this where
    layerstep is imported.
    """
    global _current
    if is_disabled() or is_child():
        return
    from layerstep.frontends.remote.listening import listen_on

    if _current is None:
        _current, _ = open_session(batch=True, output=open(os.devnull, "w"))  # noqa: SIM115 - for good
    listen_on(_current, argv=sys.argv, hold=hold)
    if not _current.run.is_attached:
        _current.attach(discover=True)
    print(f"layerstep: process {os.getpid()} listens; `layerstep attach {os.getpid()}`", file=sys.stderr)


def pm(
    error: BaseException | None = None,
    *,
    commands: Iterable[str] | None = None,
    input: Any = None,
    output: IO[str] | None = None,
) -> None:
    """Post-mortem: look around where an exception was raised, after the fact.

    Without an exception: the one that is being handled, else the last one that ended a line of an interactive
    session. The modules that were running are on the stack with what they were called with; everything that
    looks works, everything that resumes ends it. The other options are those of `DebugConsole`.
    """
    found = error or sys.exception() or getattr(sys, "last_value", None)
    if found is None:
        raise UserError("there is no exception to look at", "pm(error), or pm() in an except block")
    if is_disabled() or is_child():
        return
    session, _ = open_session(commands=commands or (), input=input, output=output)
    try:
        session.instruments.get(Crashes).examine(found)
    finally:
        session.close()


@contextlib.contextmanager
def anomaly_detection(model: nn.Module | None = None, *, stop: bool = False) -> Iterator[Detection]:
    """Watch for NaN and Inf in forward, loss and backward; without a model, in every model that is called.

    `stop` opens the debugger at each instead of going on. Nothing is raised and nothing changes in the run; a
    healthy step costs one sum of its output, its loss and its gradients.
    """
    found = Detection()
    if is_disabled():
        yield found
        return
    session, _ = open_session(batch=not stop, output=None if stop else io.StringIO())
    if model is not None:
        session.add_model(model)
    session.attach(discover=model is None)
    try:
        point = catch_nonfinite(session, "nonfinite")
        search_of(session).listeners.append(found.add)
        point.commands = () if stop else ("silent", "continue")
        yield found
    finally:
        session.detach()
        session.close()


def lockstep(
    a: nn.Module | str | os.PathLike[str],
    b: nn.Module | str | os.PathLike[str],
    *inputs: Any,
    tol: float | None = None,
    map: Mapping[str, str] | None = None,
    **named: Any,
) -> Lockstep:
    """Run two models on copies of one input, and find the first layer whose inputs agree and output does not.

    In place of a model, a file: a run that `lockstep save` wrote. Without `tol`, a difference counts if it is
    larger than other roundings make it. `map` fixes counterparts: the paths in `b` by those in `a`. Neither
    model is changed, and nothing stays on them.
    """
    session = _current
    if session is None:
        session, _ = open_session(batch=True, output=io.StringIO())
    one, other = _side(a, "a"), _side(b, "b")
    given = Arguments(inputs, named) if inputs or named else None
    try:
        return compare_sides(session, one, other, given, tolerance=tol, paths=map)
    finally:
        if session is not _current:
            session.close()


def _side(given: Any, name: str) -> tuple[str, Side]:
    if isinstance(given, nn.Module):
        return name, given
    if isinstance(given, str | os.PathLike):
        return name, Path(given)
    raise UserError(f"lockstep wants models or files, not {type(given).__name__}")


def tell_unread(session: Session) -> None:
    """The run is over: show what was measured and not shown yet."""
    for instrument in session.instruments:
        if not isinstance(instrument, Measuring):
            continue
        shortfall = instrument.shortfall()
        if shortfall:
            session.say(Notice(shortfall, level="warn"))
        instrument.clear()
        for line in instrument.unread():
            session.prompt.run_line(line, origin="the end of the run")


def tell_silent_points(session: Session) -> None:
    """A point that never fired says so and why: silence is the worst bug."""
    asked = [point for point in session.points.shown if not isinstance(point, Catch) or point.is_pending]
    silent = [(point, reason) for point in asked if (reason := silence_of(session, point))]
    for point, reason in silent[:5]:
        if point.enabled:
            session.say(Notice(f"{point.kind} {point.number} at {described(point)}: {reason}", level="warn"))
    if len(silent) > 5:
        session.say(Notice(f"{len(silent) - 5} more points never fired", "`info breaks`", level="warn"))
