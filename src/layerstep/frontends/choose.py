"""Put a session together: which front end talks to the user here, and where the text goes."""

from __future__ import annotations

import builtins
import functools
import multiprocessing
import os
import sys
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, Any

from layerstep.assembly import assemble
from layerstep.config import load_config
from layerstep.engine.messages import Frontend
from layerstep.engine.session import Interpreter, Session

if TYPE_CHECKING:
    from layerstep.frontends.output import Screen

__all__ = ["choose_frontend", "is_child", "open_session"]


def open_session(
    *,
    commands: Iterable[str] = (),
    input: Any = None,
    output: IO[str] | None = None,
    json: IO[str] | None = None,
    use_pipe: bool = False,
    batch: bool = False,
    interpreter: Interpreter | None = None,
) -> tuple[Session, Screen]:
    """A session with a screen and, unless this is batch work, a front end to ask.

    `use_pipe` takes lines from a stdin that is no terminal: only `layerstep run` may, a library must
    leave the program's input alone.
    """
    from layerstep.frontends.notebook import NotebookScreen, notebook_shell  # rich: 30 ms
    from layerstep.frontends.output import JsonLines, Screen, write_transcript

    session = assemble(load_config(), interpreter)
    shell = notebook_shell() if output is None else None
    if shell is not None:
        screen: Screen = NotebookScreen(session, shell)
    else:
        screen = Screen(session, output or sys.stderr or open(os.devnull, "w"))  # noqa: SIM115 - for good
    session.listen(screen)
    session.listen(functools.partial(write_transcript, session))
    if json is not None:
        session.listen(JsonLines(json))
    session.prompt.script.extend(commands)
    if not batch:
        session.prompt.frontend = choose_frontend(session, screen, input=input, use_pipe=use_pipe)
    return session, screen


def is_child() -> bool:
    """Is this a DataLoader worker or another process that the program started? It must never prompt."""
    return multiprocessing.parent_process() is not None


def choose_frontend(session: Session, screen: Screen, *, input: Any, use_pipe: bool) -> Frontend | None:
    """The front end for an input; without one, for what this process was started with."""
    from layerstep.frontends.notebook import notebook_shell
    from layerstep.frontends.plain import Plain

    if is_child():
        return None
    if input is not None:
        return _for_input(session, screen, input)
    if notebook_shell() is not None:
        return Plain(session, screen, ask=builtins.input)
    stream: IO[str] | None = sys.stdin
    if stream is None or stream.closed:
        return None
    if stream.isatty() and screen.console.file.isatty():
        if os.environ.get("TERM", "") in ("dumb", "unknown"):
            return Plain(session, screen, stream)
        from layerstep.frontends.terminal.prompt import Terminal

        screen.can_page = True
        return Terminal(session, screen)
    return Plain(session, screen, stream) if use_pipe and not stream.isatty() else None


def _for_input(session: Session, screen: Screen, given: Any) -> Frontend:
    if hasattr(given, "read_keys"):  # a prompt_toolkit Input
        from prompt_toolkit.output import DummyOutput

        from layerstep.frontends.terminal.prompt import Terminal

        return Terminal(session, screen, input=given, output=DummyOutput())
    from layerstep.frontends.plain import Plain

    return Plain(session, screen, given)
