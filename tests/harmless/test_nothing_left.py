"""Whatever ends a session, nothing of it stays: no hook, no handler, no replaced function."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import layerstep
from layerstep import DebugConsole
from zoo import MLP, ZOO, Entry, console_on, global_state, hook_count, loop, seed, taps_on

FAILING = ("Linear", "LazyLinear", "NonDynamicallyQuantizableLinear", "Bilinear", "Noise", "Dropout")


@pytest.fixture(autouse=True)
def nothing_of_the_process_changes() -> Iterator[None]:
    before = global_state()
    yield
    assert global_state() == before


@pytest.fixture(params=ZOO, ids=str)
def entry(request: pytest.FixtureRequest) -> Entry:
    return request.param


def _built(entry: Entry) -> nn.Module:
    seed(0)
    return entry.build()


def _run(entry: Entry, model: nn.Module, commands: list[str]) -> str:
    """Two iterations under a console; its text."""
    console, seen = console_on(model, commands)
    with console:
        loop(entry, model, "train" if "train" in entry.modes else entry.modes[0])
    return seen.text


def _make_fail(entry: Entry, model: nn.Module, error: BaseException) -> None:
    """Let the second call of the last Linear, or what the model has like it, raise."""
    kinds = (entry.kind,) if entry.fused else FAILING  # a fused layer does not call the Linears inside it
    module = next(part for part in reversed(list(model.modules())) if type(part).__name__ in kinds)
    forward, calls = module.forward, []

    def fail(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise error
        return forward(*args, **kwargs)

    module.forward = fail


def _assert_clean(entry: Entry, model: nn.Module, hooks_before: int) -> None:
    assert taps_on(model) == []
    if not entry.lazy:
        assert hook_count(model) == hooks_before


@pytest.mark.parametrize("ending", ["continue", "detach", "end of commands"])
def test_after_a_run_to_the_end(entry: Entry, ending: str) -> None:
    model = _built(entry)
    before = hook_count(model)
    lines = ["break **", "continue", "step", "next", "break type:Module enter", "into"]
    more = {"continue": ["continue", "delete", "continue"], "detach": ["detach"], "end of commands": []}
    text = _run(entry, model, [*lines, *more[ending]])
    assert " done " in text
    _assert_clean(entry, model, before)


def test_after_quit(entry: Entry) -> None:
    """No `except Exception` holds it up, and the exit code is a shell's for an interrupted program."""
    model = _built(entry)
    before = hook_count(model)
    with pytest.raises(layerstep.Quit) as caught:
        try:
            _run(entry, model, [f"break {entry.inner}", "continue", "step", "quit"])
        except Exception as error:
            pytest.fail(f"swallowed {error!r}")
    assert isinstance(caught.value, SystemExit)
    assert caught.value.code == 130
    _assert_clean(entry, model, before)


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_after_an_exception_in_a_forward(entry: Entry, kind: type[BaseException]) -> None:
    """While every module is tapped by `step`; it is the user's own exception that comes out."""
    model = _built(entry)
    before = hook_count(model)
    error = kind("from the model")
    _make_fail(entry, model, error)
    with pytest.raises(kind, match="from the model") as caught:
        _run(entry, model, ["step", "step 1000"])
    assert caught.value is error
    _assert_clean(entry, model, before)


ENDINGS = {
    "continue": "continue\n" * 20,
    "detach": "stats out\ndetach\n",
    "quit": "where\nquit\n",
    "end of input": "step\n",
    "exception": "step\n" * 40,
    "KeyboardInterrupt": "step\n" * 40,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_with_somebody_to_ask(ending: str) -> None:
    """With a front end there is a SIGINT handler too, while the session lasts and no longer."""
    seed(0)
    model, x = MLP(), torch.randn(2, 6)
    if ending in ("exception", "KeyboardInterrupt"):
        model.head.forward = _raiser(ValueError if ending == "exception" else KeyboardInterrupt)
    handler = global_state()["SIGINT"]
    console = DebugConsole(model, input=io.StringIO(ENDINGS[ending]), output=io.StringIO())
    console.breakpoint("body.0")
    caught: BaseException | None = None
    try:
        with console:
            assert global_state()["SIGINT"] != handler
            console.model(x)
    except BaseException as error:
        caught = error
    expected = {"exception": ValueError, "KeyboardInterrupt": KeyboardInterrupt, "quit": layerstep.Quit}
    assert type(caught) is expected.get(ending, type(None))
    assert taps_on(model) == [] and hook_count(model) == 0


def _raiser(kind: type[BaseException]) -> Callable[..., Any]:
    def forward(*args: Any) -> Any:
        raise kind("from the model")

    return forward


def test_with_attach_and_detach() -> None:
    model = MLP()
    console = layerstep.attach(model, commands=["break **", "continue"], output=io.StringIO())
    assert taps_on(model)
    console.detach()
    assert hook_count(model) == 0
    console.detach()


def test_nothing_armed_nothing_installed() -> None:
    model = MLP()
    console = DebugConsole(model, output=io.StringIO())
    with console:
        assert hook_count(model) == 0
        number = console.breakpoint("head")
        assert taps_on(model)
        console.execute(f"disable {number}")
        assert hook_count(model) == 0
        console.execute(f"enable {number}")
        assert taps_on(model)
        console.execute(f"delete {number}")
        assert hook_count(model) == 0


@pytest.mark.parametrize("place", ["describe", "interpret"])
def test_a_bug_of_ours_is_not_the_end_of_the_run(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed(0)
    model, x = MLP(), torch.randn(2, 6)
    seed(1)
    expected = model(x)

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("planted")

    console, seen = console_on(model, ["break body.0", "continue", "where", "continue"])
    if place == "describe":
        monkeypatch.setattr("layerstep.engine.causes.AtModule.view", broken)
    else:
        monkeypatch.setattr("layerstep.commands.where.stack_row", broken)
    seed(1)
    assert torch.equal(console.run(x), expected)
    assert len(seen.bugs) == 1 and "planted" in seen.bugs[0]
    assert hook_count(model) == 0


class Broken(io.StringIO):
    """A screen that goes away: a closed pipe."""

    def write(self, text: str) -> int:
        raise BrokenPipeError("the screen is gone")


@pytest.mark.parametrize("commands", [["break body.0", "continue"], []], ids=["from the start", "at a stop"])
def test_a_screen_that_is_gone_is_not_the_end_of_the_run(
    commands: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seed(0)
    model, x = MLP(), torch.randn(2, 6)
    seed(1)
    expected = model(x)
    seed(1)
    console = DebugConsole(model, commands=commands, output=Broken())
    if not commands:
        console.breakpoint("body.0")
    with (tmp_path / "stdout").open("w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert torch.equal(console.run(x), expected)
        print("the program's own", file=stdout)
        monkeypatch.undo()
    assert (tmp_path / "stdout").read_text() == "the program's own\n"
    assert hook_count(model) == 0


def test_the_threads_of_a_session_end_or_are_daemons() -> None:
    model = MLP()
    console = DebugConsole(model, input=io.StringIO("continue\n"), output=io.StringIO())
    console.breakpoint("head")
    console.run(torch.randn(2, 6))
    others = [thread for thread in threading.enumerate() if thread.name.startswith("layerstep")]
    assert all(thread.daemon for thread in others)


@pytest.mark.parametrize("thread", [pytest.param("main", marks=pytest.mark.long), "worker"])
def test_quit_ends_the_process_with_130(thread: str) -> None:
    """Also from a stop in another thread, while the main one waits for something else."""
    program = textwrap.dedent(
        f"""
        import io, os, signal, threading
        import torch
        from torch import nn
        import layerstep

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` has it ignored
        model = nn.Sequential(nn.Linear(2, 2))
        console = layerstep.DebugConsole(
            model, commands=["break 0", "continue", "quit"], output=io.StringIO()
        )

        def train():
            try:
                while True:
                    model(torch.ones(2))
            except Exception:
                print("swallowed")
            finally:
                hanging = threading.Timer(5, os._exit, [7])
                hanging.daemon = True
                hanging.start()

        try:
            with console:
                if {thread == "main"}:
                    train()
                else:
                    threading.Thread(target=train).start()
                    threading.Event().wait()
        finally:
            print("finally", len(model[0]._forward_hooks), flush=True)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=250, env=dict(os.environ)
    )
    assert done.returncode != 7, "the main thread was not woken"
    assert done.stdout == "finally 0\n"
    died_of_sigint = -signal.SIGINT  # which a shell reports as 130 too
    assert done.returncode in (130, died_of_sigint), done.stderr
