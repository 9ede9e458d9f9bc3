"""Exceptions of other threads while the prompt is open: each traceback is shown in one piece."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from prompt_toolkit.application import Application
from prompt_toolkit.input import DummyInput
from prompt_toolkit.output import DummyOutput

from layerstep.frontends.terminal import tracebacks
from layerstep.frontends.terminal.tracebacks import Tracebacks

SECONDS = 100


@pytest.fixture
def watching() -> Iterator[Tracebacks]:
    before = sys.excepthook, threading.excepthook
    under = Tracebacks(Application(input=DummyInput(), output=DummyOutput()))
    yield under
    under.leave()
    left = sys.excepthook, threading.excepthook
    sys.excepthook, threading.excepthook = before
    assert left == before


def fail() -> None:
    raise ValueError("planted fault")


def test_a_prompt_that_opens_meanwhile_waits_for_the_end_of_a_traceback(
    watching: Tracebacks, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    begun, opening = threading.Event(), threading.Event()

    def line_by_line(*exception: Any) -> None:
        written.append("first line")
        begun.set()
        opening.wait(SECONDS)
        threading.Event().wait(0.05)  # the prompt would be drawn now
        written.append("last line")

    def open_prompt() -> None:
        begun.wait(SECONDS)
        opening.set()
        watching.prompt_opens()
        written.append("prompt")

    with monkeypatch.context() as patched:
        patched.setattr(threading, "excepthook", line_by_line)
        watching.watch()
        threads = [threading.Thread(target=each) for each in (fail, open_prompt)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        watching.leave()
    assert written == ["first line", "last line", "prompt"]


def test_a_hook_that_hangs_holds_no_prompt(watching: Tracebacks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracebacks, "MOST_SECONDS", 0.01)
    begun, over = threading.Event(), threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr(threading, "excepthook", lambda _: begun.set() or over.wait(SECONDS))
        watching.watch()
        thread = threading.Thread(target=fail)
        thread.start()
        assert begun.wait(SECONDS)
        watching.prompt_opens()
        over.set()
        thread.join(SECONDS)
        watching.leave()


def test_a_prompt_that_has_just_been_closed_holds_no_traceback(
    watching: Tracebacks, capsys: pytest.CaptureFixture[str]
) -> None:
    watching.watch()
    watching.prompt_opens()  # of an application that does not run
    error = ValueError("planted fault")
    sys.excepthook(ValueError, error, None)
    assert capsys.readouterr().err == "ValueError: planted fault\n"


def test_a_hook_that_the_program_sets_meanwhile_stays(watching: Tracebacks) -> None:
    def own(*exception: Any) -> None:
        raise AssertionError

    before = sys.excepthook
    watching.watch()
    watching.watch()
    sys.excepthook = own
    watching.leave()
    assert sys.excepthook is own
    sys.excepthook = before
