"""`layerstep attach [PID]`: the prompt of a process that listens, in another terminal."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterable
from typing import IO

from layerstep.errors import UserError
from layerstep.frontends.remote.client import Client
from layerstep.frontends.remote.conversation import Conversation, waiting
from layerstep.frontends.remote.injection import ask_to_listen
from layerstep.frontends.remote.sockets import Process, is_listening, listening_processes
from layerstep.render.screen import make_console, to_rich
from layerstep.views import Column, Notice, Table, Text, View
from layerstep.visible import visible

__all__ = ["attach", "show_processes"]

PROMPT, RUNNING = "(layerstep) ", "(running) "
LEAVE = ("detach", "exit", "exit()")


def attach(pid: int | None = None) -> int:
    """Talk to a process until the user leaves or it ends; the exit code."""
    if pid is None:
        pid = _only_one()
    elif not is_listening(pid) and _is_there(pid):
        ask_to_listen(pid)
    return _Prompt(pid).run()


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _only_one() -> int:
    processes = listening_processes()
    if not processes:
        raise UserError(
            "no process listens",
            "start one with `layerstep run --listen script.py`, or call `layerstep.listen()` in it",
        )
    if len(processes) > 1:
        make_console(sys.stderr).print(to_rich(processes_view(processes)))
        raise UserError(f"{len(processes)} processes listen", "`layerstep attach PID`")
    return processes[0].pid


def show_processes() -> int:
    """List what listens; the exit code."""
    processes = listening_processes()
    shown = processes_view(processes) if processes else Notice("no process listens")
    make_console(sys.stdout).print(to_rich(shown))
    return 0


def processes_view(processes: Iterable[Process]) -> Table:
    """What listens: each process, and where it stands."""
    columns = (
        Column("pid", "key", right=True),
        Column("rank", right=True),
        Column("step", right=True),
        Column("state"),
        Column("program"),
    )
    return Table(columns, tuple(_row(each) for each in processes))


def _row(process: Process) -> tuple[str, ...]:
    state, step = "does not answer", ""
    with contextlib.suppress(UserError, TimeoutError):
        client = Client(process.pid, name="list", mode="view")
        state, step = waiting(client.hello["state"]), str(client.hello["state"].get("step", ""))
        client.close()
    rank = "" if process.rank is None else str(process.rank)
    return (str(process.pid), rank, step, state, process.title)


class _Prompt:
    """The conversation on a terminal, or with a pipe."""

    def __init__(self, pid: int) -> None:
        self._console = make_console(sys.stdout)
        self._printing = threading.Lock()
        self._asked_to_quit = False
        self._talk = Conversation(pid, name=f"pid {os.getpid()}", show=self._show)
        self._pid = pid

    def run(self) -> int:
        facts = self._talk.client.hello
        program = os.path.basename(facts["argv"][0]) if facts["argv"] else "python"
        self._show(
            Notice(
                f"attached to {program}, process {self._pid}: {waiting(self._talk.state)}",
                "Ctrl-C stops it at the next module, `detach` leaves it alone",
            )
        )
        self._talk.begin()
        on_terminal = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        try:
            self._ask() if on_terminal else self._take(sys.stdin)
        finally:
            self._console.file = sys.stdout
            was_over = self._talk.is_over
            self._talk.leave()
            self._show(Notice("the program has ended" if was_over else "detached; the program goes on"))
        return 0

    def _show(self, view: View, line: str = "", origin: str = "") -> None:
        """Show a view, and the line that it answers if that was not typed here."""
        with self._printing:
            with self._console.capture() as captured:
                if line:
                    self._console.print(f"({origin}) {line}" if origin else f"{PROMPT}{line}", style="dim")
                if not (isinstance(view, Text) and not view.text):
                    self._console.print(to_rich(view))
            text = "".join(f"{each.rstrip()}\n" for each in captured.get().splitlines())
            self._console.file.write(text)
            self._console.file.flush()

    def _take(self, lines: IO[str]) -> None:
        """Lines of a pipe: after one that lets the run go on, the next is for the next stop."""
        for line in lines:
            was_paused = self._talk.is_paused
            self._show(Text(f"{PROMPT if was_paused else RUNNING}{visible(line.rstrip())}"))
            if self._talk.is_over or not self._obey(line.rstrip("\n")):
                return
            if was_paused and not self._talk.is_paused:
                self._talk.wait_for_pause()

    def _obey(self, line: str) -> bool:
        """Do what a line says; False if it leaves."""
        word = line.strip()
        if word in LEAVE:
            return False
        if word == "interrupt":
            self._interrupt()
            return True
        if word in ("quit", "q", "quit()") and not self._asked_to_quit:
            self._asked_to_quit = True
            self._show(
                Notice(
                    "`quit` ends the program", "once more to end it; `detach` leaves it alone", level="warn"
                )
            )
            return True
        self._asked_to_quit = False
        refused = self._talk.submit(line)
        if refused is not None:
            self._show(refused)
        return True

    def _interrupt(self) -> None:
        """Stop the run at its next module, or cancel the line that it works on."""
        error = self._talk.client.request("interrupt").exception(5)
        if error is not None:
            self._show(Notice(str(error), level="error"))
        elif not self._talk.is_paused and not sys.stdin.isatty():
            self._talk.wait_for_pause()

    def _ask(self) -> None:
        """The prompt of prompt_toolkit. What arrives meanwhile is printed above it."""
        from prompt_toolkit.patch_stdout import patch_stdout

        from layerstep.frontends.remote.line_editor import line_editor

        editor = line_editor(self._talk, no_colour=self._console.no_color)
        with patch_stdout(raw=True):
            self._console.file = sys.stdout
            while not self._talk.is_over:
                try:
                    line = editor.prompt(lambda: PROMPT if self._talk.is_paused else RUNNING)
                except KeyboardInterrupt:
                    self._interrupt()
                    continue
                except EOFError:
                    return
                if not self._obey(line):
                    return
