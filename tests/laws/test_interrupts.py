"""Law 2 at the prompt: Ctrl-C, other signals, and lines that raise what ends a program end nothing."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import quick_python
from layerstep import DebugConsole
from layerstep.process import interrupts

SECONDS = 100


@pytest.fixture(autouse=True)
def sigint() -> Iterator[None]:
    """The handler that Python installs; and it is put back."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    left = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)
    assert left is signal.default_int_handler, "the handler is not what it was"


def console_with(model: nn.Module, *lines: str) -> tuple[DebugConsole, Callable[[], str]]:
    """A console that is asked for these lines, and its text."""
    output = io.StringIO()
    text = "".join(line + "\n" for line in lines)
    return DebugConsole(model, input=io.StringIO(text), output=output), output.getvalue


class Raising:
    """Raises when it is shown."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __repr__(self) -> str:
        raise self.error


class Takes(nn.Module):
    def forward(self, x: torch.Tensor, other: Any = None) -> torch.Tensor:
        return x


@pytest.mark.parametrize(
    "line",
    ["raise SystemExit", "__import__('sys').exit(3)", "raise GeneratorExit", "raise KeyboardInterrupt"],
)
def test_a_line_that_raises_what_ends_a_program_ends_nothing(line: str) -> None:
    model = nn.Linear(2, 2)
    console, text = console_with(model, line, "6 * 7", "continue", "5 * 5", "continue")
    with console:
        console.execute("break **")
        for _ in range(2):
            model(torch.ones(1, 2))
    assert "42" in text() and "25" in text()
    assert "a bug in layerstep" not in text()


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, KeyboardInterrupt])
def test_a_value_that_raises_when_it_is_shown_ends_nothing(error: type[BaseException]) -> None:
    model = Takes()
    console, text = console_with(model, "inp", "watch inp[1]", "6 * 7", "continue", "5 * 5", "continue")
    with console:
        console.execute("break **")
        for _ in range(2):
            model(torch.ones(1), Raising(error))
    assert "42" in text() and "25" in text()
    assert "a bug in layerstep" not in text()


def test_enter_that_repeats_a_command_which_fails_is_answered() -> None:
    console, text = console_with(nn.Linear(2, 2), "step", "", "6 * 7")
    with console:
        console.execute("break **")

        def broken(*args: Any, **kwargs: Any) -> None:
            raise RuntimeError("planted fault")

        console.session.prompt._interpret = broken
        console.model(torch.ones(1, 2))
    assert "a bug in layerstep: RuntimeError: planted fault" in text()


class Interrupting:
    """Presses Ctrl-C while it is shown, as a person may while a large tensor is summed up."""

    def __init__(self, times: int = 1) -> None:
        self.times = times

    def __repr__(self) -> str:
        for _ in range(self.times):
            signal.raise_signal(signal.SIGINT)
        return "shown in spite of it"


def test_ctrl_c_while_a_stop_is_worked_out_is_not_the_programs() -> None:
    model = Takes()
    console, text = console_with(model, "6 * 7", "continue", "5 * 5", "continue")
    with console:
        console.execute("watch inp[1]")
        console.execute("break **")
        for _ in range(2):
            model(torch.ones(1), Interrupting())
    assert "stopped at" in text() and "interrupted before its values were shown" in text()
    assert "42" in text() and "25" in text()


def test_two_lines_cancelled_quickly_one_after_the_other() -> None:
    """Each Ctrl-C cancels its own line: the second is not taken for the second of two."""
    model = nn.Linear(2, 2)
    cancel = "__import__('signal').raise_signal(2) or 'in spite of it'"
    console, text = console_with(model, cancel, cancel, "6 * 7", "continue")
    with console:
        console.execute("break **")
        model(torch.ones(1, 2))
    assert text().count("! interrupted") == 2 and "42" in text()


def test_ctrl_c_cancels_a_line_that_another_thread_works_out() -> None:
    model = nn.Linear(2, 2)
    busy = threading.Event()
    model.busy = busy
    console, text = console_with(
        model, "model.busy.set() or sum(1 for _ in iter(int, 1))", "6 * 7", "continue"
    )
    with console:
        console.execute("break **")
        thread = threading.Thread(target=lambda: model(torch.ones(1, 2)), daemon=True)
        thread.start()
        assert busy.wait(SECONDS)
        signal.raise_signal(signal.SIGINT)
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert "! interrupted" in text() and "42" in text()


FOLLOWED_AFTERWARDS = """
import io, sys, threading, torch
from layerstep import DebugConsole

model = torch.nn.Linear(2, 2)
console = DebugConsole(model, input=io.StringIO("6 * 7\\ncontinue\\n"), output=sys.stdout)
with console:
    console.execute("break **")
    thread = threading.Thread(target=lambda: model(torch.ones(1, 2)))
    thread.start()
    thread.join()

def followed():
    return "and the program goes on"

sys.settrace(lambda *_: None)
print(followed())
"""


def test_a_program_that_is_traced_goes_on_after_a_line_in_another_thread() -> None:
    """Python 3.11 hung there: it looked for an exception that nobody had sent, at the same instruction."""
    done = quick_python.run(["-c", FOLLOWED_AFTERWARDS])
    assert "42" in done.stdout and "and the program goes on" in done.stdout, done.stderr


def test_two_consoles_leave_the_handler_as_it_was() -> None:
    consoles = [console_with(nn.Linear(2, 2))[0] for _ in range(2)]
    for console in consoles:
        console.attach()
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    for console in consoles:
        console.detach()


def test_the_second_ctrl_c_goes_to_the_handler_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "TWICE_WITHIN", SECONDS)
    seen: list[int] = []

    def own(number: int, frame: Any) -> None:
        seen.append(number)

    signal.signal(signal.SIGINT, own)
    console, text = console_with(nn.Linear(2, 2))
    with console:
        signal.raise_signal(signal.SIGINT)
        assert not seen and "stopping at the next module" in text()
        signal.raise_signal(signal.SIGINT)
        assert seen == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is own
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_handler_that_the_program_sets_later_stays() -> None:
    seen: list[int] = []

    def own(number: int, frame: Any) -> None:
        seen.append(number)

    console, _ = console_with(nn.Linear(2, 2))
    with console:
        signal.signal(signal.SIGINT, own)
        signal.raise_signal(signal.SIGINT)
    assert seen == [signal.SIGINT] and signal.getsignal(signal.SIGINT) is own
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_ignored_ctrl_c_stays_ignored() -> None:
    """`nohup` and `&` start a program so."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    console, text = console_with(nn.Linear(2, 2))
    with console:
        signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert "stopping" not in text()
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Signalled:
    """A front end whose user sends a signal to the waiting program."""

    def __init__(self, number: int) -> None:
        self.number = number

    has_keyboard = True

    def paused(self) -> None:
        threading.Thread(target=lambda: os.kill(os.getpid(), self.number), daemon=True).start()

    def resumed(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("error", [TimeoutError, SystemExit])
def test_what_a_signal_handler_of_the_program_raises_at_the_prompt_is_the_programs(
    error: type[BaseException],
) -> None:
    def own(number: int, frame: Any) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, own)
    output = io.StringIO()
    model = nn.Linear(2, 2)
    console = DebugConsole(model, output=output)
    console.session.prompt.frontend = Signalled(signal.SIGALRM)
    try:
        with pytest.raises(error), console:
            console.execute("break **")
            model(torch.ones(1, 2))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert "a bug in layerstep" not in output.getvalue()
    assert not model._forward_hooks


def test_lines_from_another_thread_are_answered_also_as_a_stop_ends() -> None:
    model = nn.Linear(2, 2)
    console, _ = console_with(model, *["continue"] * 60)
    futures, over = [], threading.Event()

    def ask() -> None:
        while not over.is_set():
            futures.append(console.submit("1"))
            time.sleep(0.001)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=ask, daemon=True)
    try:
        with console:
            console.execute("break **")
            thread.start()
            for _ in range(60):
                model(torch.ones(1, 2))
    finally:
        over.set()
        sys.setswitchinterval(before)
    thread.join(SECONDS)
    for future in futures:
        with contextlib.suppress(Exception):
            future.result(SECONDS)
    assert futures and all(future.done() for future in futures)


def test_a_file_that_sources_itself_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.txt").write_text("print 5 * 5\nsource own.txt\n")
    model = nn.Linear(2, 2)
    console, text = console_with(model, "source own.txt", "6 * 7", "continue")
    with console:
        console.execute("break **")
        model(torch.ones(1, 2))
    assert "is being run already" in text() and "25" in text() and "42" in text()


QUITTING = """\
import io, signal, sys, threading, torch
from torch import nn
from layerstep import DebugConsole

{handler}
model = nn.Linear(2, 2)
with DebugConsole(model, input=io.StringIO("quit\\n"), output=io.StringIO()) as console:
    console.execute("break **")
    thread = threading.Thread(target=lambda: model(torch.ones(1, 2)))
    thread.start()
    {wait}
"""


@pytest.mark.parametrize(
    ("handler", "wait"),
    [
        ("signal.default_int_handler", "threading.Event().wait()"),
        ("signal.SIG_IGN", "thread.join(); sum(1 for _ in iter(int, 1))"),
        pytest.param("signal.SIG_IGN", "threading.Event().wait()", marks=pytest.mark.long),
        pytest.param(
            "lambda number, frame: None",
            "thread.join(); sum(1 for _ in iter(int, 1))",
            marks=pytest.mark.long,
        ),
    ],
)
def test_quit_in_another_thread_ends_the_program_whatever_it_does_about_ctrl_c(
    handler: str, wait: str
) -> None:
    code = QUITTING.format(handler=f"signal.signal(signal.SIGINT, {handler})", wait=wait)
    done = quick_python.run(["-c", code])
    assert done.returncode == 130, done.stderr


def test_ctrl_c_within_the_window_after_a_stop_is_a_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "TWICE_WITHIN", SECONDS)
    model = nn.Linear(2, 2)
    console, text = console_with(model, "continue", "continue")
    with console:
        for _ in range(2):  # each stops; in quick succession
            signal.raise_signal(signal.SIGINT)
            model(torch.ones(1, 2))
    assert text().count("stopping at the next module") == 2
