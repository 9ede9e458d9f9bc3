"""The program under the debugger: a script or a module, run as python would run it."""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import linecache
import os
import runpy
import sys
import types
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

from layerstep import __version__
from layerstep.api import tell_silent_points, tell_unread, use_session
from layerstep.crashes.catching import Crashes
from layerstep.edits.edits import Edits
from layerstep.engine.causes import AtLine
from layerstep.engine.pause import Pause
from layerstep.engine.point import PointKind
from layerstep.engine.session import Session
from layerstep.engine.stop import Stop
from layerstep.errors import Quit, UserError
from layerstep.imports import start_in
from layerstep.process.frames import is_ours
from layerstep.sinks.opening import close_sinks
from layerstep.source_lines.watcher import SourceLines
from layerstep.views import Notice

__all__ = ["CAUGHT_EXIT_CODE", "ModuleProgram", "Program", "Stay", "debug", "debug_afterwards"]

CAUGHT_EXIT_CODE = 3
"""A catchpoint has fired, and no front end could be asked."""


class Stay(IntEnum):
    """When does the prompt open at the end of the program?"""

    NEVER = 0
    IF_SILENT = 1
    """If points were set and none was reached."""
    ALWAYS = 2


def debug(program: Program, session: Session, *, stay: Stay = Stay.NEVER) -> int:
    """Run a program with a session on it, from the prompt before it starts to its end."""
    use_session(session)
    session.instruments.get(SourceLines).script = program.file
    session.attach(discover=True)
    try:
        if session.prompt.frontend is not None:
            text = f"layerstep {__version__}: {os.path.basename(program.script)} has not started"
            session.say(
                Notice(text, "`break WHERE` sets a point, `continue` starts it, `help` lists the commands")
            )
        session.start(ask=True)
        if session.prompt.frontend is None and session.prompt.wrong_lines:
            return UserError.exit_code  # what was asked for cannot be had: running without it proves nothing
        code = program.run(session.instruments.get(Crashes).uncaught)
        if session.run.is_attached or session.prompt.frontend is None:  # batch work ends by detaching
            tell_silent_points(session)
            tell_unread(session)
            if (edited := session.instruments.get(Edits).ended()) is not None:
                session.say(edited)
        if stay is Stay.ALWAYS or (stay is Stay.IF_SILENT and _was_silent(session)):
            _stay(program, session, code)
        return code if session.prompt.frontend is not None else _batch_code(session, code)
    finally:
        session.detach()
        close_sinks(session)
        session.close()
        use_session(None)


def _batch_code(session: Session, code: int) -> int:
    """In batch work the exit code tells what was caught, and that a line or a point was wrong."""
    if session.standstill.caught:
        return CAUGHT_EXIT_CODE
    is_wrong = session.prompt.wrong_lines or any(p.is_pending and p.trouble for p in session.points)
    return UserError.exit_code if is_wrong and not code else code


def _was_silent(session: Session) -> bool:
    """Were breakpoints set, and none reached? Then the user has seen nothing."""
    points = [point for point in session.points.shown if point.kind is PointKind.BREAK]
    return session.run.is_attached and bool(points) and not any(point.hits for point in points)


def _stay(program: Program, session: Session, code: int) -> None:
    """The prompt after the end: the program's globals can be read, and there is nothing to resume."""
    session.run.scope.globals = program.globals
    name = os.path.basename(program.script)
    session.say(
        Notice(f"{name} has ended with exit code {code}", "its globals and models can be seen; `quit` leaves")
    )
    try:
        session.standstill.hold(Pause(session.run.scope, Stop(AtLine(), reason="the end"), is_over=True))
    finally:
        session.run.scope.globals = None


def debug_afterwards(program: Program, session: Session) -> int:
    """Run a program with nothing on it; if it ends by an exception, open the prompt there."""
    try:
        return program.run(session.instruments.get(Crashes).examine)
    finally:
        session.close()


class Program:
    """A script, run as python would: argv, `sys.path[0]`, `__main__`."""

    def __init__(self, script: str, args: Sequence[str]) -> None:
        self.script = script
        self.args = list(args)
        self.globals: dict[str, Any] = {}
        try:
            self._source = Path(script).read_bytes()
        except OSError as error:
            raise UserError(f"cannot read {script}", error.strerror or "") from None

    @property
    def words(self) -> list[str]:
        """What the user typed to run it."""
        return [self.script, *self.args]

    @property
    def file(self) -> str:
        """The file that runs as `__main__`."""
        return os.path.abspath(self.script)

    def run(self, crashed: Callable[[BaseException], None] | None = None) -> int:
        """The exit code of the program; its own exception is shown as python shows it.

        `crashed` gets that exception first.
        """
        sys.argv = self._argv()
        try:
            self._execute()
        except Quit:
            raise
        except SystemExit as leaving:
            return _exit_code(leaving)
        except BaseException as error:
            error.__traceback__ = _without_us(error.__traceback__)
            if crashed is not None and isinstance(error, Exception):
                crashed(error)
            _show(error)
            return 130 if isinstance(error, KeyboardInterrupt) else 1
        return 0

    def _argv(self) -> list[str]:
        return [self.script, *self.args]

    def _execute(self) -> None:
        start_in(os.path.dirname(os.path.realpath(self.script)))
        file = self.file
        with contextlib.suppress(SyntaxError, UnicodeError):  # compiling says it better
            text = importlib.util.decode_source(self._source)
            # Without a time the lines stay as they ran, also when the file is edited meanwhile.
            linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        module = types.ModuleType("__main__")
        module.__dict__.update(__file__=file, __builtins__=builtins, __spec__=None, __cached__=None)
        sys.modules["__main__"] = module
        self.globals = module.__dict__
        exec(compile(self._source, file, "exec", dont_inherit=True), module.__dict__)


class ModuleProgram(Program):
    """A module, run as `python -m` would."""

    def __init__(self, words: Sequence[str]) -> None:
        if not words:
            raise UserError("-m needs the name of a module")
        self.script, *self.args = words
        self.globals = {}
        sys.path.insert(0, os.getcwd())
        try:
            found = importlib.util.find_spec(self.script)
        except (ImportError, ValueError):
            found = None
        finally:
            sys.path.pop(0)
        self._spec = found
        if found is None:
            raise UserError(f"no module named {self.script}", "-m takes a name as `import` does")

    @property
    def words(self) -> list[str]:
        return ["-m", *super().words]

    @property
    def file(self) -> str:
        found = self._spec
        if found is not None and found.submodule_search_locations:  # a package runs its `__main__`
            return os.path.join(found.submodule_search_locations[0], "__main__.py")
        return (found.origin if found is not None else None) or ""

    def _execute(self) -> None:
        start_in(os.getcwd())
        self.globals = runpy.run_module(self.script, run_name="__main__", alter_sys=True)


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code
    print(leaving.code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> None:
    """The user's traceback without our frames and those that started the script."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = _without_us(one.__traceback__)
            waiting += [one.__cause__, one.__context__]
    sys.excepthook(type(error), error, error.__traceback__)


def _without_us(trace: types.TracebackType | None) -> types.TracebackType | None:
    if trace is None:
        return None
    rest = _without_us(trace.tb_next)
    file = trace.tb_frame.f_code.co_filename
    if is_ours(trace.tb_frame) or file.startswith("<frozen runpy") or os.path.basename(file) == "runpy.py":
        return rest
    return types.TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
