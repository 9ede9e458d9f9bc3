"""What runs a module once more calls no hook for all modules, draws from no stream, and fills no cache."""

from __future__ import annotations

import _thread
import functools
import queue
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize

from layerstep.module_paths.models import Models
from layerstep.side_effects import random_streams
from layerstep.side_effects.guard import undisturbed
from layerstep.side_effects.random_streams import OtherThreads
from zoo import console_on

RERUNS = ("ops", "stability", "shadow fp64", "flops", "grad check", "attention", "again", "why out")


def lines_at(stop: str, *lines: str) -> list[str]:
    return [stop, "continue", *lines, "delete", "continue"]


@pytest.mark.parametrize("line", RERUNS)
def test_hooks_for_all_modules_are_called_by_the_run_alone(line: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1), nn.Linear(4, 4))
    calls: list[str] = []
    note: Callable[[str], Any] = lambda kind: lambda *given: calls.append(kind)  # noqa: E731
    handles = [
        torch_module.register_module_forward_pre_hook(note("before")),
        torch_module.register_module_forward_hook(note("after")),
        torch_module.register_module_full_backward_hook(note("backward")),
        torch_module.register_module_full_backward_pre_hook(note("before backward")),
    ]
    tables = [torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks]
    before = [list(table.items()) for table in tables]
    try:
        console, seen = console_on(model, lines_at("break Sequential", line))
        with console:
            output = model(torch.randn(2, 4, requires_grad=True))
        assert (calls.count("before"), calls.count("after"), len(calls)) == (4, 4, 8)
        output.sum().backward()
        assert calls.count("backward") == calls.count("before backward") == 4
        assert [list(table.items()) for table in tables] == before
        assert not seen.bugs
    finally:
        for handle in handles:
            handle.remove()


def test_a_hook_for_all_modules_is_called_in_other_threads_during_a_rerun() -> None:
    other = nn.Linear(2, 2)
    calls: list[int] = []

    class Asks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            thread = threading.Thread(target=lambda: other(torch.ones(2)))
            thread.start()
            thread.join(100)
            return x

    handle = torch_module.register_module_forward_hook(lambda *given: calls.append(threading.get_ident()))
    try:
        model = nn.Sequential(Asks())
        console, _ = console_on(model, lines_at("break Sequential", "ops", "again"))
        with console:
            model(torch.ones(2))
    finally:
        handle.remove()
    assert calls.count(threading.get_ident()) == 2
    assert len(calls) == 5


SHARED = np.random.default_rng(5)


class Noisy(nn.Module):
    """Draws from generators that it holds in every way there is."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.own = torch.Generator().manual_seed(1)
        self.held = {"numpy": [np.random.default_rng(1)], "old": np.random.RandomState(2)}
        self.helper = Helper()
        closed = random.Random(3)
        self.draw = lambda: closed.random()
        self.part = functools.partial(lambda generator: generator.random(), random.Random(4))

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        noise = self.held["numpy"][0].random() + self.held["old"].random()  # type: ignore[index,union-attr]
        noise += self.draw() + self.part() + self.helper.draw() + SHARED.random()
        return self.lin(x) + torch.rand(4, generator=self.own) + torch.rand(4, generator=generator) + noise


class Helper:
    def __init__(self) -> None:
        self.bits = np.random.PCG64(6)

    def draw(self) -> float:
        return float(self.bits.random_raw() % 97)


@pytest.mark.parametrize("line", [*RERUNS, "mod(inp[0])"])
def test_generators_of_the_programs_own_are_put_back(line: str) -> None:
    def outputs(*lines: str) -> list[Tensor]:
        global SHARED
        SHARED = np.random.default_rng(5)
        torch.manual_seed(0)
        model, given = Noisy(), torch.Generator().manual_seed(7)
        console, seen = console_on(model, lines)
        with console:
            found = [model(torch.ones(2, 4), given) for _ in range(2)]
        assert not seen.bugs
        return found

    for bare, debugged in zip(outputs("continue"), outputs(*lines_at("break Noisy", line)), strict=True):
        assert torch.equal(bare, debugged)


def test_the_search_for_a_nan_draws_what_the_call_drew() -> None:
    class Rooted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = torch.Generator().manual_seed(3)
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            drawn = torch.rand(1, generator=self.own)
            return torch.sqrt(x * self.scale * (-1.0 if drawn < 0.02 else 1.0))

    model = Rooted()
    console, seen = console_on(model, ["catch nan", "continue", "perturbed?", "continue"])
    with console:
        for _ in range(200):
            model(torch.ones(3))
    assert "sqrt" in seen.text and "not reproducible" not in seen.text


def threads_that_draw() -> Iterator[tuple[str, Callable[[], float]]]:
    yield "numpy", lambda: float(np.random.rand())
    yield "random", random.random
    yield "torch", lambda: float(torch.rand(()))


@pytest.mark.parametrize(("stream", "draw"), list(threads_that_draw()))
def test_what_another_thread_draws_during_a_line_is_not_drawn_twice(
    stream: str, draw: Callable[[], float]
) -> None:
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    drawn: list[float] = []
    asked: queue.Queue[bool] = queue.Queue()
    done = threading.Semaphore(0)

    def produce() -> None:
        while asked.get():
            drawn.append(draw())
            done.release()

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    model = nn.Linear(4, 4)
    model.draw = lambda: (asked.put(True), done.acquire(timeout=100))[0]
    console, seen = console_on(model, ["break Linear", "continue", *["mod.draw()", "continue"] * 3])
    with console:
        for _ in range(3):
            model(torch.ones(2, 4))
    asked.put(False)
    thread.join(100)
    assert len(set(drawn)) == len(drawn) == 3
    assert not seen.bugs


def test_what_a_line_draws_is_put_back_though_other_threads_wait() -> None:
    end = threading.Event()
    threads = [threading.Thread(target=end.wait, args=(60,), daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(1000):  # until they all wait
        others = OtherThreads()
        time.sleep(0.005)
        if not others.have_run():
            break
    models = Models()
    models.add(nn.Linear(2, 2), "model")
    before = torch.get_rng_state(), np.random.get_state(legacy=False)["state"]["pos"], random.getstate()
    with undisturbed(models, deep=True) as outcome:
        torch.rand(3), np.random.rand(3), random.random()
    after = torch.get_rng_state(), np.random.get_state(legacy=False)["state"]["pos"], random.getstate()
    end.set()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    assert outcome.restored == ["random streams (torch, random, numpy)"]


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.Philox, np.random.SFC64, np.random.MT19937])
def test_any_bit_generator_of_numpy_is_put_back(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # A thread of the test runner that runs meanwhile might have drawn, and then it is not put back.
    monkeypatch.setattr(random_streams, "_run_times", dict)
    usual = np.random.get_bit_generator()
    np.random.set_bit_generator(kind(1))
    try:
        expected = kind(1).random_raw(1).tolist()
        model = nn.Linear(2, 2)
        console, seen = console_on(
            model, lines_at("break Linear", "where", "__import__('numpy').random.rand(3)", "ops")
        )
        with console:
            model(torch.ones(1, 2))
        assert not seen.bugs
        assert np.random.get_bit_generator().random_raw(1).tolist() == expected
    finally:
        np.random.set_bit_generator(usual)


class Jitter(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight + torch.randn_like(weight)


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pre = nn.Identity()
        self.lin = nn.Linear(4, 4)
        parametrize.register_parametrization(self.lin, "weight", Jitter())

    def forward(self, x: Tensor) -> Tensor:
        with parametrize.cached():
            x = self.pre(x)
            return self.lin(torch.tanh(self.lin(x)))


@pytest.mark.parametrize("line", [*RERUNS, "lin.weight", "stats lin.weight", "weights", "flops lin"])
@pytest.mark.parametrize("stop", ["break pre", "break lin enter", "break lin.parametrizations.weight.0"])
def test_a_look_leaves_cached_parametrizations_as_they_are(stop: str, line: str) -> None:
    def run(*lines: str) -> tuple[Tensor, Tensor | None, Tensor]:
        torch.manual_seed(0)
        model = Cached()
        console, _ = console_on(model, lines)
        with console:
            output = model(torch.ones(2, 4))
            output.sum().backward()
        return output, model.lin.bias.grad, torch.get_rng_state()

    for bare, debugged in zip(run("continue"), run(*lines_at(stop, line)), strict=True):
        assert bare is not None and debugged is not None
        assert torch.equal(bare, debugged)


def _start(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()


def _start_plain(work: Callable[[], None]) -> None:
    _thread.start_new_thread(work, ())


@pytest.mark.parametrize("start", [_start, _start_plain])
def test_a_thread_of_a_library_does_not_keep_the_streams_from_being_put_back(
    tmp_path: Path, start: Callable[[Callable[[], None]], None]
) -> None:
    """A progress bar's thread wakes up during many a line, and draws nothing."""
    file = tmp_path / "site-packages" / "bar.py"
    code = "def work():\n    while not stop.wait(0.0001):\n        pass\n    done.set()\n"
    names: dict[str, Any] = {"stop": threading.Event(), "done": threading.Event()}
    exec(compile(code, str(file), "exec"), names)
    start(names["work"])
    model, after = nn.Dropout(0.5), []
    try:
        for lines in ((), lines_at("break **", "mod(inp), __import__('time').sleep(0.05)")):
            torch.manual_seed(0)
            console, seen = console_on(model, lines)
            with console:
                model(torch.ones(8))
            after.append(torch.get_rng_state())
        assert "$1" in seen.text
        assert torch.equal(*after)
    finally:
        names["stop"].set()
        assert names["done"].wait(100)


def test_a_plain_thread_of_the_program_may_draw() -> None:
    ready, stop, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        ready.set()
        stop.wait()
        done.set()

    _thread.start_new_thread(work, ())
    try:
        assert ready.wait(100)
        assert OtherThreads().have_run()
    finally:
        stop.set()
        assert done.wait(100)


@pytest.mark.parametrize("stop", ["break leaf", "break leaf backward"])
def test_a_rerun_does_not_make_torchscript_optimize_sooner(stop: str) -> None:
    """It runs other code, with a node of its own in the graph, after a number of calls."""

    def nodes(*lines: str) -> list[str]:
        class Leaf(nn.Module):  # each has counts of its own
            def forward(self, x: Tensor) -> Tensor:
                return torch.tanh(x) * 2

        model = nn.Sequential(OrderedDict(leaf=torch.jit.script(Leaf())))
        console, seen = console_on(model, lines)
        with console:
            found = []
            for _ in range(4):
                output = model(torch.ones(2, 2, requires_grad=True))
                found.append(type(output.grad_fn).__name__)
                output.sum().backward()
        assert not lines or "$1" in seen.text
        return found

    bare = nodes()
    assert len(set(bare)) == 2
    call = "model.leaf(torch.ones(2, 2, requires_grad=True))"
    assert nodes(stop, "continue", *[call] * 4, "delete 1", "continue") == bare


class _InAThread(nn.Module):
    """Runs its batch norm in a thread of its own, as some models run their parts."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        out: list[Tensor] = []
        thread = threading.Thread(target=lambda: out.append(self.norm(x)))
        thread.start()
        thread.join()
        return out[0]


@pytest.mark.parametrize("line", ["attention", "model(inp)"])
def test_buffers_of_parts_that_run_in_threads_of_the_model_are_put_back(line: str) -> None:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    bare, model = _InAThread(), _InAThread()
    bare(x)
    console, _ = console_on(model, lines_at("break _InAThread enter", line))
    console.run(x)
    assert torch.equal(bare.norm.running_mean, model.norm.running_mean)
    assert torch.equal(bare.norm.running_var, model.norm.running_var)


class _ByForward(nn.Module):
    """Runs its batch norm by `forward`, of which no hook hears."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm.forward(x)


@pytest.mark.parametrize("line", ["attention", "stability", "flops", "model(inp)"])
def test_buffers_of_parts_that_are_run_by_their_forward_are_put_back(line: str) -> None:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    bare, model = _ByForward(), _ByForward()
    bare(x)
    console, _ = console_on(model, lines_at("break _ByForward enter", line))
    console.run(x)
    assert torch.equal(bare.norm.running_mean, model.norm.running_mean)
    assert torch.equal(bare.norm.running_var, model.norm.running_var)


def test_operations_are_counted_at_a_stop_in_inference_mode() -> None:
    """A copy that is made there could have no gradient."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            with torch.inference_mode():
                return self.second(y.detach())

    model = Inner()
    console, seen = console_on(model, lines_at("break second enter", "flops first", "flops"))
    console.run(torch.ones(2, 4, requires_grad=True))
    assert not seen.bugs and "forward" in seen.text


class _Writes(nn.Module):
    """Writes its weights in each forward, in the ways that momentum encoders, clamps and casts do."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.layer = nn.Linear(4, 4)
        self.slow = [torch.ones(4)]

    def forward(self, x: Tensor) -> Tensor:
        weight = self.layer.weight
        if self.way == "in place":
            with torch.no_grad():
                weight.mul_(0.9)
        elif self.way == "by data":
            weight.data.mul_(0.9)
            self.slow[0].data.mul_(0.9)
        elif self.way == "other memory":
            weight.data = weight.data * 0.9
        elif self.way == "other class":
            self.__class__ = _WritesOnce
        elif self.way == "frozen":
            weight.requires_grad_(not weight.requires_grad)
        elif self.way == "other dtype":
            y = self.layer.double()(x.double())
            self.layer.float()
            return y.float()
        return self.layer(x) * self.slow[0]


class _WritesOnce(_Writes):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * 3


@pytest.mark.parametrize("line", RERUNS)
@pytest.mark.parametrize(
    "way", ["in place", "by data", "other memory", "other class", "frozen", "other dtype"]
)
@pytest.mark.parametrize("stop", ["break _Writes", "break layer"])
def test_what_a_forward_does_to_its_own_weights_is_done_by_the_run_alone(
    stop: str, way: str, line: str
) -> None:
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    bare = _Writes(way)
    torch.manual_seed(0)
    model = _Writes(way)
    console, seen = console_on(model, lines_at(stop, "up", line))
    outputs = []
    for each, run in ((bare, bare), (model, console.run)):
        given = x.clone().requires_grad_()
        output = run(given)
        output.sum().backward()
        outputs.append((output, given.grad, each.layer.weight, each.layer.weight.grad, each.slow[0]))
    for one, other in zip(*outputs, strict=True):
        assert (one is None and other is None) or torch.equal(one, other)
    assert bare.layer.weight._version == model.layer.weight._version
    assert type(bare) is type(model)
    assert not seen.bugs


class _Transforms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.vmap(torch.func.jacrev(lambda row: self.layer(row).tanh()))(x).mean()


@pytest.mark.parametrize("line", RERUNS)
def test_a_module_is_not_rerun_in_a_transform_in_which_it_was_not_called(line: str) -> None:
    """There `double()` would give the weight a value of the transform, which is gone with it."""
    torch.manual_seed(0)
    model = nn.Sequential(_Transforms(), _Writes("other dtype"))
    x = torch.randn(2, 4)
    expected = model(x)
    console, seen = console_on(model, lines_at("break 0.layer", "up", "up", line))
    assert torch.equal(console.run(x), expected)
    assert torch.equal(model(x), expected)
    assert not seen.bugs
