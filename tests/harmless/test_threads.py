"""Models in several threads and processes: one stop after the other, and never one in a worker."""

from __future__ import annotations

import io
import queue
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import layerstep
from layerstep import DebugConsole
from zoo import MLP, console_on, hook_count, seed, taps_on


class Two(nn.Module):
    """A model with a part for each of two threads."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
        self.right = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))


def _model() -> Two:
    seed(0)
    return Two().eval()


def _together(*targets: Callable[[], Any]) -> list[Any]:
    """Run functions in a thread each; their results. A thread that hangs fails the test."""
    results: list[Any] = [None] * len(targets)

    def put(number: int) -> None:
        results[number] = targets[number]()

    threads = [threading.Thread(target=put, args=(number,), daemon=True) for number, _ in enumerate(targets)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive(), "a thread hangs"
    return results


def test_two_threads_stop_one_after_the_other() -> None:
    model, x = _model(), torch.ones(1, 6)
    expected = [model.left(x), model.right(x)]
    console, seen = console_on(
        model,
        [
            "break left.2",
            "break right.2",
            "continue",
            "where",
            "stats",
            "continue",
            "where",
            "stats",
            "continue",
        ],
    )
    with console:
        together = threading.Barrier(2)

        def run(part: nn.Module) -> torch.Tensor:
            together.wait(100)
            return part(x)

        results = _together(lambda: run(model.left), lambda: run(model.right))
    assert sorted(path for path, _ in seen.stops) == ["left.2", "right.2"]
    assert all(torch.equal(a, b) for a, b in zip(expected, results, strict=True))
    assert hook_count(model) == 0


class Asking:
    """A front end that is asked at a stop; a thread of the test answers."""

    def __init__(self) -> None:
        self.asked: queue.Queue[str] = queue.Queue()
        self.console: DebugConsole | None = None

    has_keyboard = True

    def paused(self) -> None:
        assert self.console is not None and self.console.session.run.pause is not None
        self.asked.put(self.console.session.run.pause.stack[0].path)

    def resumed(self) -> None:
        pass


def test_a_third_thread_drives_two() -> None:
    model, x = _model(), torch.ones(1, 6)
    expected = [model.left(x), model.right(x)]
    console = DebugConsole(model, output=io.StringIO())
    front = Asking()
    front.console = console
    console.session.prompt.frontend = front
    console.breakpoint("left.0")
    console.breakpoint("right.0")
    visited: list[str] = []

    def drive() -> None:
        for _ in range(2):
            visited.append(front.asked.get(timeout=100))
            assert console.submit("out.sum()").result(100) is not None
            console.submit("continue").result(100)

    with console:
        driver = threading.Thread(target=drive, daemon=True)
        driver.start()
        results = _together(lambda: model.left(x), lambda: model.right(x))
        driver.join(100)
    assert sorted(visited) == ["left.0", "right.0"]
    assert all(torch.equal(a, b) for a, b in zip(expected, results, strict=True))


def test_a_step_stays_in_its_thread() -> None:
    """While one thread steps, the other runs through."""
    model, x = _model(), torch.ones(1, 6)
    console, seen = console_on(model, ["break left.0", "continue", *["step"] * 3])
    go = threading.Event()

    def busy() -> None:
        while not go.is_set():
            model.right(x)

    def stepping() -> None:
        try:
            model.left(x)
        finally:
            go.set()

    with console:
        _together(busy, stepping)
    assert [path for path, _ in seen.stops] == ["left.0", "left.1", "left.2", "left"]


def test_detach_in_one_thread_lets_the_waiting_one_go() -> None:
    model, x = _model(), torch.ones(1, 6)
    console, seen = console_on(model, ["break *.0", "continue", "detach"])
    with console:
        _together(lambda: model.left(x), lambda: model.right(x))
        assert len(seen.stops) == 1
        assert hook_count(model) == 0


def test_conditions_in_two_threads_do_not_silence_each_other() -> None:
    """One thread's condition begins while the other's is being asked, and ends after it."""
    model, x = _model(), torch.ones(1, 6)
    inside, outside = threading.Event(), threading.Event()

    def first() -> bool:
        inside.set()
        outside.wait(100)
        return False

    def second() -> bool:
        inside.wait(100)
        outside.set()
        first_done.wait(100)
        return False

    first_done = threading.Event()
    model.first, model.second = first, second
    console, seen = console_on(
        model,
        [
            "break left.0 if model.first()",
            "break right.0 if model.second()",
            "break left.2",
            "break right.2",
            *["continue"] * 3,
        ],
    )

    def left() -> None:
        model.left[0](x)
        first_done.set()
        finished.wait(100)
        model.left[2](x)

    def right() -> None:
        model.right[0](x)
        model.right[2](x)
        finished.set()

    finished = threading.Event()
    with console:
        _together(left, right)
    assert sorted(path for path, _ in seen.stops) == ["left.2", "right.2"]


class Rows(Dataset[torch.Tensor]):
    """A dataset that runs a tapped model in the worker."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        torch.manual_seed(index)
        if index == 3:
            layerstep.set_trace()
        with torch.no_grad():
            return self.model(torch.full((1, 6), float(index)))


def _loader(model: nn.Module) -> DataLoader[torch.Tensor]:
    return DataLoader(Rows(model), batch_size=1, num_workers=2, multiprocessing_context="fork", timeout=250)


def _same_rows(rows: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(row[0], one) for row, one in zip(rows, expected, strict=True))


def test_a_worker_of_a_data_loader_never_prompts() -> None:
    """Nobody answers: the stream of lines would be read by the parent."""
    seed(0)
    model = MLP().eval()
    expected = [model(torch.full((1, 6), float(index))).detach() for index in range(6)]
    console = DebugConsole(model, input=io.StringIO("where\n" * 50), output=io.StringIO())
    console.breakpoint("head")
    console.breakpoint("**", "enter")
    stops: list[str] = []
    console.session.listen(lambda message: stops.append(message.kind) if message.kind == "stop" else None)
    with console:
        rows = list(_loader(model))
        assert taps_on(model), "the parent is still attached"
    assert stops == []
    assert _same_rows(rows, expected)


def test_a_worker_that_is_started_at_a_stop_never_prompts() -> None:
    seed(0)
    model = MLP().eval()
    expected = [model(torch.full((1, 6), float(index))).detach() for index in range(6)]
    rows: list[torch.Tensor] = []
    model.load = lambda: rows.extend(_loader(model))
    console, seen = console_on(
        model, ["break **", "break ** enter", "continue", "model.load()", *["step"] * 30]
    )
    console.run(torch.ones(1, 6))
    assert len(seen.stops) > 8
    assert _same_rows(rows, expected)
