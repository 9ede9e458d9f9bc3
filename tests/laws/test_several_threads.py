"""Several threads in models: stops name theirs, steps stay in theirs, and what was deleted stops none."""

from __future__ import annotations

import io
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from layerstep import DebugConsole
from layerstep.render.screen import to_text

SECONDS = 100


class Two(nn.Module):
    """A model with a part for each of two threads."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
        self.right = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))


class Driver:
    """A front end that is driven by the test, in a thread of its own."""

    def __init__(self, model: nn.Module) -> None:
        self.output = io.StringIO()
        self.console = DebugConsole(model, output=self.output)
        self.console.session.prompt.frontend = self
        self.stops: queue.Queue[str] = queue.Queue()

    has_keyboard = True

    def paused(self) -> None:
        assert self.console.session.run.pause is not None
        self.stops.put(self.console.session.run.pause.stack[0].path)

    def resumed(self) -> None:
        pass

    def close(self) -> None:
        pass

    def stop(self) -> str:
        """Wait for a stop: its path."""
        return self.stops.get(timeout=SECONDS)

    def ask(self, line: str) -> str:
        view = self.console.submit(line).result(SECONDS)
        return to_text(view, width=300) if view is not None else ""

    def threads_until(self, words: str) -> str:
        """Wait until `info threads` says so."""
        return self.wait_until(lambda: words in (text := self.ask("info threads")) and text)

    def wait_until(self, ask: Callable[[], Any]) -> Any:
        end = time.monotonic() + SECONDS
        while not (answer := ask()):
            assert time.monotonic() < end, "it has not come"
            time.sleep(0.01)
        return answer


@pytest.fixture
def driver() -> Driver:
    torch.manual_seed(0)
    return Driver(Two())


@pytest.fixture
def started() -> Iterator[Callable[..., threading.Thread]]:
    threads: list[threading.Thread] = []

    def start(name: str, target: Callable[[], Any]) -> threading.Thread:
        threads.append(threading.Thread(target=target, name=name, daemon=True))
        threads[-1].start()
        return threads[-1]

    yield start
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive(), "a thread hangs"


X = torch.ones(1, 2)


def test_a_point_that_is_deleted_while_a_thread_waits_for_its_turn_does_not_stop_it(
    driver: Driver, started: Callable[..., threading.Thread]
) -> None:
    model = driver.console.model
    with driver.console:
        driver.ask("break left.0")
        driver.ask("break right.0")
        started("first", lambda: model.left(X))
        assert driver.stop() == "left.0"
        other = started("second", lambda: model.right(X))
        driver.threads_until("waits for its turn to stop at break 2")
        driver.ask("delete 2")
        driver.ask("continue")
        other.join(SECONDS)
    assert driver.stops.empty()


def test_a_temporary_point_stops_once(driver: Driver, started: Callable[..., threading.Thread]) -> None:
    model = driver.console.model
    with driver.console:
        driver.ask("tbreak *.0")
        started("first", lambda: model.left(X))
        assert driver.stop() == "left.0"
        other = started("second", lambda: model.right(X))
        driver.wait_until(lambda: not other.is_alive() or "waits for its turn" in driver.ask("info threads"))
        driver.ask("continue")
        other.join(SECONDS)
    assert driver.stops.empty()


def test_a_step_stays_in_its_thread_though_another_waits_at_a_point(
    driver: Driver, started: Callable[..., threading.Thread]
) -> None:
    model = driver.console.model
    with driver.console:
        driver.ask("break left.0")
        driver.ask("break right.0")
        started("first", lambda: model.left(X))
        assert driver.stop() == "left.0"
        started("second", lambda: model.right(X))
        driver.threads_until("waits for its turn to stop at break 2")
        for path in ("left.1", "left.2"):
            driver.ask("step")
            assert driver.stop() == path
        driver.ask("continue")
        assert driver.stop() == "right.0"
        driver.ask("continue")
    text = driver.output.getvalue()
    assert "left.1  done  Tanh  forward 0  thread first" in text
    assert "right.0  done  Linear  forward 0  break 2  thread second" in text


def test_a_stepped_thread_that_waits_for_another_one_does_not_hold_it(
    driver: Driver, started: Callable[..., threading.Thread]
) -> None:
    """The step goes on when the other one has been left."""
    model, is_done = driver.console.model, threading.Event()

    def first() -> None:
        model.left[0](X)
        is_done.wait(SECONDS)
        model.left[2](X)

    def second() -> None:
        model.right(X)
        is_done.set()

    with driver.console:
        driver.ask("break left.0")
        driver.ask("break right.0")
        started("first", first)
        assert driver.stop() == "left.0"
        started("second", second)
        driver.threads_until("waits for its turn")
        driver.ask("step")
        assert driver.stop() == "right.0"
        driver.ask("continue")
        assert driver.stop() == "left.2"
        driver.ask("continue")
    assert is_done.is_set()


def test_the_threads_are_listed(driver: Driver, started: Callable[..., threading.Thread]) -> None:
    model, go_on = driver.console.model, threading.Event()
    model.right[1].register_forward_pre_hook(lambda module, args: go_on.wait(SECONDS) and None)
    with driver.console:
        driver.ask("break left.0")
        started("busy", lambda: model.right(X))
        started("worker-1", lambda: model.left(X))
        assert driver.stop() == "left.0"
        rows = {line.split()[0]: line for line in driver.threads_until("right.1").splitlines()[1:]}
        assert rows["worker-1"].split()[1:4] == ["left.0", "paused", "here"]
        assert rows["busy"].split()[1:3] == ["right.1", "runs"]
        assert rows["MainThread"].split()[1:4] == ["no", "module", "runs"]
        assert not any(name.startswith("layerstep") for name in rows)
        go_on.set()
        driver.ask("continue")


def test_one_thread_is_not_named() -> None:
    model, output = nn.Linear(2, 2), io.StringIO()
    console = DebugConsole(model, commands=["break **", "continue", "info threads"], output=output)
    console.run(X)
    assert "thread Main" not in output.getvalue() and "paused here" in output.getvalue()


def test_a_stop_has_the_number_of_its_own_forward(started: Callable[..., threading.Thread]) -> None:
    """A second thread that begins a forward does not renumber the first one's."""

    class Chooses(Two):
        def forward(self, side: str, x: torch.Tensor) -> torch.Tensor:
            return self.get_submodule(side)(x)  # type: ignore[no-any-return]

    model, entered, go_on = Chooses(), threading.Event(), threading.Event()

    def wait(*_: Any) -> None:
        entered.set()
        go_on.wait(SECONDS)

    model.left[1].register_forward_pre_hook(wait)
    driver = Driver(model)
    with driver.console:
        driver.ask("break left.2")
        driver.ask("break right.2")
        started("first", lambda: model("left", X))
        assert entered.wait(SECONDS)
        started("second", lambda: model("right", X))
        assert driver.stop() == "right.2"
        go_on.set()
        driver.ask("continue")
        assert driver.stop() == "left.2"
        driver.ask("continue")
    text = driver.output.getvalue()
    assert "right.2  done  Linear  forward 2" in text and "left.2  done  Linear  forward 1" in text
