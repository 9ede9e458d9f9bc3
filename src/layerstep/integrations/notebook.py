"""The IPython extension: `%load_ext layerstep`, `%layerstep LINE` and `%%layerstep` for a cell."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from typing import Any

from layerstep.api import tell_silent_points, tell_unread, use_session
from layerstep.config import is_disabled
from layerstep.crashes.catching import Crashes
from layerstep.engine.session import Session
from layerstep.errors import Quit, UserError
from layerstep.frontends.choose import open_session
from layerstep.views import Notice
from layerstep.wrong_lines import check_lines

__all__ = ["Magics", "load", "unload"]

_LOADED: dict[int, Magics] = {}
"""The extension of each shell, by its id: a process has one, or none."""


def load(shell: Any) -> None:
    """Register the magics; once."""
    if id(shell) not in _LOADED:
        _LOADED[id(shell)] = magics = Magics(shell)
        shell.register_magic_function(magics.line, "line", "layerstep")
        shell.register_magic_function(magics.cell, "cell", "layerstep")


def unload(shell: Any) -> None:
    """Remove them, and everything that they have put on models."""
    magics = _LOADED.pop(id(shell), None)
    if magics is not None:
        magics.close()
        for kind in ("line", "cell"):
            shell.magics_manager.magics[kind].pop("layerstep", None)


class Magics:
    """One session for the whole notebook. Its points stay set and take effect in `%%layerstep` cells."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._session: Session | None = None

    def _opened(self) -> Session:
        if self._session is None:
            self._session, _ = open_session()
        return self._session

    def close(self) -> None:
        """Take everything off the run."""
        if self._session is not None:
            self._session.detach()
            self._session.close()

    def line(self, line: str) -> None:
        """Answer one line of the debugger: `%layerstep break encoder.0`, `%layerstep tree`.

        Points are set for all `%%layerstep` cells that follow. Without a line: help.
        """
        if not is_disabled():
            self._opened().prompt.submit(line.strip() or "help").result()

    def cell(self, line: str, cell: str) -> None:
        """Run a cell under the debugger: `%%layerstep`, `%%layerstep break head; continue; stats out`.

        Lines after `%%layerstep` are typed for you, separated by `;`. Those up to the first that resumes come
        before the cell, the others at the stops. When they run out, a stop asks you, or goes on if the
        notebook takes no input. Points that are set meanwhile are deleted at the end: the cell can run again.
        """
        __tracebackhide__ = True  # of the user's cell, IPython shows the user's lines alone
        if is_disabled():
            self._run(cell)
            return
        session = self._opened()
        lines = [part.strip() for part in line.split(";") if part.strip()]
        try:
            check_lines(lines)
        except UserError as error:
            session.say(Notice(error.message, error.hint, level="error"))
            return
        session.prompt.script.extend(lines)
        with self._attached(session):
            if session.prompt.script:
                session.start(ask=False)
            self._run(cell)

    @contextlib.contextmanager
    def _attached(self, session: Session) -> Iterator[None]:
        __tracebackhide__ = True
        before = {point.number for point in session.points}
        use_session(session)
        session.attach(discover=True)
        try:
            yield
            if session.run.is_attached:
                tell_silent_points(session)
            tell_unread(session)
        except Quit:
            session.say(Notice("quit: the cell ends here"))
        except Exception as error:
            session.instruments.get(Crashes).left(error)
            raise
        finally:
            session.prompt.script.clear()
            for number in [each.number for each in session.points if each.number not in before]:
                session.prompt.answer(f"delete {number}")
            session.detach()
            use_session(None)

    def _run(self, cell: str) -> None:
        """Run the text as the shell runs a cell: the last value is shown. Its exceptions are passed on."""
        __tracebackhide__ = True
        shell = self._shell
        text = shell.transform_cell(cell)
        name = shell.compile.cache(text)
        tree = ast.parse(text, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), shell.user_ns)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, "eval"), shell.user_ns)
            if not text.rstrip().endswith(";"):
                shell.displayhook(value)
