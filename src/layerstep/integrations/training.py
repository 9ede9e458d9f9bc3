"""What the callbacks of trainers share: a console that is attached while a training runs."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import IO, Any, Self

from torch import nn

from layerstep.api import DebugConsole, tell_silent_points, tell_unread
from layerstep.config import is_disabled
from layerstep.doctor.budget import Level
from layerstep.doctor.watching import Doctor
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.sinks.opening import check_sinks
from layerstep.sinks.sink import Sink
from layerstep.wrong_lines import check_lines

__all__ = ["TrainingDebug"]


class TrainingDebug:
    """The debugger of one callback.

    It is copied and pickled without its console: a process that a strategy starts has none yet, and a
    checkpoint must not hold one.
    """

    def __init__(
        self,
        breakpoints: tuple[str, ...],
        *,
        commands: Iterable[str] = (),
        doctor: str = "",
        sinks: Iterable[str | Sink] = (),
        input: Any = None,
        output: IO[str] | None = None,
    ) -> None:
        if isinstance(commands, str):
            raise UserError("commands is a list of lines", f"commands=[{commands!r}]")
        watch = [f"doctor on {Level.parse(doctor)}"] if doctor else []
        self._lines = (*(f"break {each}" for each in breakpoints), *watch, *commands)
        check_lines(self._lines)
        if isinstance(sinks, str):
            raise UserError("sinks is a list", f"sinks=[{sinks!r}]")
        self._sinks = tuple(sinks)
        check_sinks(self._sinks)
        self._input = input
        self._output = output
        self._console: DebugConsole | None = None

    @property
    def console(self) -> DebugConsole | None:
        """The console while a training runs."""
        return self._console

    def begin(self, model: nn.Module, *, is_first_process: bool = True) -> None:
        """A training begins. Of several processes, only the first is debugged: it alone has a terminal."""
        self.drop()  # an exception may have ended the training before
        if is_disabled() or not is_first_process:
            return
        self._console = DebugConsole(
            model, commands=self._lines, sinks=self._sinks, input=self._input, output=self._output
        )
        self._console.attach()

    def end(self) -> None:
        """The training is over: tell what is left to tell, and take everything off the model."""
        if self._console is not None:
            _tell(self._console.session)
        self.drop()

    def fail(self, error: BaseException) -> None:
        """An exception leaves the training: explain it where a module raised it, then take everything off."""
        console, self._console = self._console, None
        if console is not None:
            console.__exit__(type(error), error, error.__traceback__)
            console.session.close()

    def drop(self) -> None:
        """Take everything off the model."""
        console, self._console = self._console, None
        if console is not None:
            console.detach()
            console.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end() if error is None else self.fail(error)

    def __getstate__(self) -> dict[str, Any]:
        named = tuple(each for each in self._sinks if isinstance(each, str))
        return {**vars(self), "_console": None, "_input": None, "_output": None, "_sinks": named}


def _tell(session: Session) -> None:
    doctor = next((each for each in session.instruments if isinstance(each, Doctor)), None)
    if doctor is not None and doctor.was_on:
        doctor.finish(quiet=True)
        session.prompt.run_line("doctor report", origin="the end of the training")
    if session.run.is_attached:
        tell_silent_points(session)
    tell_unread(session)
