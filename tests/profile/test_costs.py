"""Planted costs: `profile` finds each and names its line. Most are timed by a clock that no load disturbs."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.utils.data
from torch import Tensor, nn

from layerstep.profile import machine, slow_lines
from layerstep.profile.advice import RULES, Evidence, advise
from layerstep.profile.roofline import Roofline, probe
from layerstep.profile.state import state_of
from play import Clock, play, script_named
from zoo import console_on

COSTS = Path(__file__).parents[2] / "examples" / "costs"
MICROSECOND, MILLISECOND = 1_000, 1_000_000
PLANTED = {
    "slow_loop": ("python-loop", "state = 0.9 * state"),
    "item_sync": ("sync", ".item()"),
    "starving": ("waiting-for-data", "time.sleep(0.01)"),
    "quadratic": ("quadratic", "scores = q @ k"),
}


def test_every_cost_has_a_row_here() -> None:
    assert {path.stem for path in COSTS.glob("*.py")} >= set(PLANTED)


@pytest.fixture
def _many_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are found by looking now and then: here so often that a busy machine cannot prevent it."""
    monkeypatch.setattr(slow_lines, "PERIOD", 0.001)


@pytest.mark.usefixtures("_many_looks")
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_cost_is_found_with_its_line(name: str) -> None:
    script = script_named(f"costs/{name}")
    clock = None if name in ("starving", "quadratic") else Clock()  # those do wait, and do work, for long
    screen, code = play(script, ["profile 3 --advice", "continue"], width=300, clock=clock)
    rule, text = PLANTED[name]
    number = next(n for n, line in enumerate(script.read_text().splitlines(), start=1) if text in line)
    assert f"{script.name}:{number}" in screen, screen
    assert f"\n{rule}" in screen, screen
    assert code == 0 and "loss" in screen


def _evidence(
    model: nn.Module,
    x: Tensor,
    *,
    roofline: Roofline | None = None,
    train: bool = False,
    wait: float = 0.0,
    steps: int = 2,
    clock: Clock | None = None,
) -> Evidence:
    """What a profile of the model knows, by the clock."""
    clock = clock or Clock()
    console, _ = console_on(model, [])
    with console, machine.replaced(clock, cores=1):
        console.execute(f"profile {steps}")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0) if train else None
        for _ in range(steps + 3):
            clock.sleep(wait)
            out = model(x)
            if optimizer is not None:
                out.sum().backward()
                optimizer.step()
        console.execute("profile off")
        state = state_of(console.session)
        return Evidence(state.measured(), state.looked, state.profile.lines, roofline)


def names(evidence: Evidence) -> set[str]:
    return {advice.name for advice in advise(evidence)}


class Attention(nn.Module):
    def __init__(self, fused: bool, clock: Clock) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.fused, self.clock = fused, clock

    def forward(self, x: Tensor) -> Tensor:
        self.clock.sleep(0.001)
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
        if self.fused:
            return nn.functional.scaled_dot_product_attention(q, k, v)
        return (q @ k.transpose(-2, -1) / math.sqrt(16)).softmax(dim=-1) @ v


class Loop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(100):
            x = x + 1
        return x


class Item(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.max().item()


class Fading(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 1e-39


class Pairs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x[:, :, None] - x[:, None, :]).abs().sum(-1)


class Working(nn.Module):
    """Takes its time, by the clock."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        super().__init__()
        self.clock, self.seconds = clock, seconds

    def forward(self, x: Tensor) -> Tensor:
        self.clock.sleep(self.seconds)
        return x.relu()


def _small(count: int, *, batch: int, seconds: float = 0.0) -> Evidence:
    """So many operations that take so long, on so many samples."""
    clock = Clock(MICROSECOND)
    model = nn.Sequential(*(Working(clock, seconds) for _ in range(count)))
    return _evidence(model, torch.ones(batch, 4), clock=clock)


def _attending(*, fused: bool) -> Evidence:
    clock = Clock()
    return _evidence(Attention(fused, clock), torch.randn(2, 96, 32), clock=clock)


def _product(dtype: torch.dtype = torch.float32) -> Evidence:
    """One product that takes about a millisecond."""
    model = nn.Sequential(nn.Linear(256, 256)).to(dtype)
    return _evidence(model, torch.randn(1024, 256, dtype=dtype), clock=Clock(MILLISECOND))


def _slow_against(factor: float) -> Evidence:
    """A layer on a machine that reaches so many times its rate."""
    found = _product()
    rate = found.measured.rate(found.measured.row("0"))  # type: ignore[arg-type]
    return replace(found, roofline=Roofline(factor * rate, 1e18, 1))


def _half(ratio: float, *, dtype: torch.dtype = torch.float32, busy: float = 1.0) -> Evidence:
    """Products in a dtype on a machine whose bfloat16 is so many times as fast as its float32.

    `busy`: the part of the layer's time that the products take.
    """
    found = _product(dtype)
    rate = found.measured.rate(found.measured.row("0")) / busy  # type: ignore[arg-type]
    return replace(found, roofline=Roofline(rate, 1e18, 1, half=ratio * rate))


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _waiting(seconds: float) -> Evidence:
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU())
    return _evidence(model, torch.randn(8, 256), wait=seconds, steps=9, train=True)


CASES: dict[str, tuple[Callable[[], Evidence], Callable[[], Evidence]]] = {
    "waiting-for-data": (lambda: _waiting(0.02), lambda: _waiting(0.0)),
    "python-loop": (
        lambda: _evidence(nn.Sequential(Loop()), torch.ones(4, 4)),
        lambda: _small(100, batch=4),
    ),
    "tiny-operations": (
        lambda: _small(250, batch=64),
        lambda: _small(250, batch=64, seconds=100e-6),
    ),
    "small-batch": (
        lambda: _small(30, batch=1),
        lambda: _small(30, batch=64),
    ),
    "sync": (
        lambda: _evidence(nn.Sequential(Item()), torch.ones(2, 2)),
        lambda: _evidence(nn.Sequential(Fading()), torch.ones(2, 2)),
    ),
    "quadratic": (
        lambda: _evidence(nn.Sequential(Pairs()), torch.randn(4, 512)),
        lambda: _evidence(nn.Sequential(nn.Linear(32, 512)), torch.randn(64, 32)),
    ),
    "unfused-attention": (
        lambda: _attending(fused=False),
        lambda: _attending(fused=True),
    ),
    "slow-layer": (lambda: _slow_against(10), lambda: _slow_against(2)),
    "denormals": (
        lambda: _evidence(nn.Sequential(Fading()), torch.rand(64, 64)),
        lambda: _evidence(nn.Sequential(nn.ReLU()), torch.rand(64, 64)),
    ),
    "float32": (lambda: _half(4.0), lambda: _half(1.1)),
}
"""Where each advice is given, and a case beside it where it is not."""


@pytest.mark.parametrize("name", [name for name in RULES if name != "threads"])
def test_advice_is_given_where_the_numbers_say_so_and_not_beside_it(name: str) -> None:
    fires, silent = CASES[name]
    found = [advice for advice in advise(fires()) if advice.name == name]
    assert found and all(advice.says and advice.gain and advice.check for advice in found)
    assert name not in names(silent())


def test_a_model_that_waits_for_requests_does_not_wait_for_data() -> None:
    requests: queue.Queue[Tensor | None] = queue.Queue()
    model, clock = nn.Sequential(nn.Linear(8, 8)), Clock()

    def serve() -> None:
        with torch.no_grad():
            while (request := requests.get()) is not None:
                model(request)
                requests.task_done()

    console, _ = console_on(model, [])
    with console, machine.replaced(clock, cores=1):
        console.execute("profile 5")
        server = threading.Thread(target=serve)
        server.start()
        for _ in range(8):
            clock.sleep(0.02)
            requests.put(torch.ones(1, 8))
            requests.join()
        requests.put(None)
        server.join()
        state = state_of(console.session)
        found = Evidence(state.measured(), state.looked, state.profile.lines)
    row = found.measured.row("between forwards")
    assert row is not None and found.measured.share(row) > 0.5
    assert "waiting-for-data" not in names(found)


@pytest.mark.usefixtures("_many_looks")
def test_a_loader_that_is_slow_without_any_training_is_told() -> None:
    class Slow(torch.utils.data.Dataset[Tensor]):
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> Tensor:
            time.sleep(0.03)
            return torch.ones(8)

    model = nn.Sequential(nn.Linear(8, 8))
    console, _ = console_on(model, [])
    with console, torch.no_grad():
        console.execute("profile on")
        for x in torch.utils.data.DataLoader(Slow()):
            model(x)
        console.execute("profile off")
        state = state_of(console.session)
        found = Evidence(state.measured(), state.looked, state.profile.lines)
    (advice,) = (each for each in advise(found) if each.name == "waiting-for-data")
    assert "num_workers" in advice.check and "time.sleep" in advice.place.text


def test_too_few_and_too_many_threads_are_told_and_the_right_number_is_not() -> None:
    found = replace(_product(), roofline=Roofline(1.0, 1e18, 1))
    with machine.replaced(Clock(), cores=2):
        with threads(3):
            (advice,) = (each for each in advise(found) if each.name == "threads")
            assert "3 threads on 2 cores" in advice.says and advice.gain and advice.check
        with threads(2):
            assert "threads" not in names(found)
        with threads(1):
            (advice,) = (each for each in advise(found) if each.name == "threads")
            assert "torch uses 1 of 2 cores" in advice.says


def test_products_that_are_of_half_precision_already_are_left_alone() -> None:
    assert "float32" not in names(_half(4.0, dtype=torch.bfloat16))


def test_half_precision_gains_nothing_where_calls_take_the_time() -> None:
    """A small layer spends its time in the call: bfloat16 was said to save most of it."""
    whole, half = (
        next(each.weight for each in advise(_half(4.0, busy=busy)) if each.name == "float32")
        for busy in (1.0, 0.5)
    )
    assert half == pytest.approx(whole / 2, rel=0.05)
    assert "float32" not in names(_half(4.0, busy=0.01))


def test_a_wait_that_may_be_ours_is_not_the_programs() -> None:
    """`leaks` searches between two steps, which looked like waiting for data."""
    found = _waiting(0.02)
    assert "waiting-for-data" in names(found)
    ours = replace(found, measured=replace(found.measured, beside=("leaks",)))
    assert "waiting-for-data" not in names(ours)


def test_a_disturbed_measurement_of_the_machine_gives_no_advice() -> None:
    assert "float32" not in names(_half(176.0))


def test_the_machine_is_probed_in_both_precisions() -> None:
    found = probe()
    assert found.flops > 1e6 and found.bandwidth > 1e6
    assert found.half == 0 or found.half > found.flops


def test_a_tensor_asked_for_its_truth_is_a_sync() -> None:
    class Asks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.sum() > 0:
                return x * 2
            return x * int(x.argmax())

    found = [a for a in advise(_evidence(nn.Sequential(Asks()), torch.ones(2, 2))) if a.name == "sync"]
    assert len(found) == 1 and "`if` on a tensor" in found[0].says
    assert found[0].place.text == "if x.sum() > 0:"


def test_a_model_with_nothing_wrong_hears_nothing_of_lines() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    assert not names(_evidence(model, torch.randn(256, 64), train=True)) & {
        "python-loop",
        "sync",
        "quadratic",
        "unfused-attention",
        "denormals",
    }


def test_a_model_that_cannot_be_run_again_still_has_times() -> None:
    class Once(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.calls: set[int] = set()

        def forward(self, x: Tensor) -> Tensor:
            if torch.is_grad_enabled():
                return self.linear(x)  # type: ignore[no-any-return]
            raise RuntimeError("only with gradients")

    found = _evidence(Once(), torch.ones(1, 2), train=True)
    assert "only with gradients" in found.looked.trouble
    assert found.measured.row("linear") is not None and len(found.measured.steps) == 2


def test_a_model_whose_first_call_cannot_be_run_again_is_looked_at_in_the_next() -> None:
    refusals = ["the first"]

    class Shy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            if not torch.is_grad_enabled() and refusals:
                raise RuntimeError(refusals.pop())
            return self.linear(x)  # type: ignore[no-any-return]

    found = _evidence(Shy(), torch.ones(2, 4), train=True)
    assert not refusals and not found.looked.trouble
    assert sum(found.looked.flops.values()) == 2 * 2 * 4 * 4
