"""What the user has wrapped around the run sees the run and nothing of the debugger."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from zoo import ZOO, Entry, Run, console_on, differences, entry_named, play

COMMANDS = ("where", "list", "tree", "stats", "inspect out", "inspect mod", "info cost", "perturbed?", "up")
LINES = ("out.sum()", "mod.weight * 2", "torch.rand(3)", "[p.norm() for p in model.parameters()]")
PLANS = {
    "points": ["break **", "break ** enter", *["continue"] * 40],
    "conditions": ["break body.0 if (out * 2).sum() > 0", 'log ** "{name} {out.sum()}"', *["continue"] * 20],
    "commands": ["break **", "continue", *[*COMMANDS, "continue"] * 4],
    "steps": [*["step", "stats"] * 8, "continue"],
    "lines": ["break **", "continue", *[*LINES, "continue"] * 6],
}


class Ops(TorchDispatchMode):
    """Notes every op."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    """Notes every torch function."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


class Saved(contextlib.AbstractContextManager[Any]):
    """Notes what autograd saves, as offloading to the host does."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: Tensor) -> Tensor:
        self.seen.append(tuple(tensor.shape))
        return tensor

    def __enter__(self) -> Saved:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)


class Flops(FlopCounterMode):
    def __init__(self) -> None:
        super().__init__(display=False)

    @property
    def seen(self) -> dict[str, int]:
        return {str(op): count for op, count in self.get_flop_counts()["Global"].items()}


def _in(around: Callable[[], AbstractContextManager[Any]], commands: list[str] | None) -> tuple[Run, Any]:
    with around() as watcher:
        run = play(entry_named("mlp"), "train", commands)
    return run, getattr(watcher, "seen", None)


WATCHED = [
    pytest.param(around, plan, id=f"{around.__name__}-{plan}")
    for around in (Ops, Functions, Saved, Flops)
    for plan in PLANS
    # A line of the user's own runs in the user's modes, as the module it stops at would.
    if plan not in ("lines", "conditions") or around is Saved
]


@pytest.mark.parametrize("around, plan", WATCHED)
def test_a_watcher_sees_the_bare_run(around: Callable[[], Any], plan: str) -> None:
    bare, expected = _in(around, None)
    run, seen = _in(around, PLANS[plan])
    assert expected and seen == expected
    assert differences(bare.state, run.state) == []
    assert run.seen.stops


@contextlib.contextmanager
def _double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def _anomaly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that this is slow
        with torch.autograd.set_detect_anomaly(True):
            yield


SURROUNDINGS = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "double": _double,
    "deterministic": _deterministic,
    "anomaly": _anomaly,
    "profiler": lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
    "no warnings": lambda: warnings.catch_warnings(),
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("around", SURROUNDINGS)
def test_in_any_surroundings_the_run_is_the_same(around: str, plan: str) -> None:
    bare, _ = _in(SURROUNDINGS[around], None)
    run, _ = _in(SURROUNDINGS[around], PLANS[plan])
    assert differences(bare.state, run.state) == []
    assert run.seen.bugs == []
    assert run.seen.stops


@pytest.mark.parametrize("plan", PLANS)
def test_a_default_device_without_values_is_not_in_the_way(plan: str) -> None:
    """Under `torch.device("meta")` what the debugger makes must still have values."""
    torch.manual_seed(0)
    model = entry_named("mlp").build().eval()
    x = torch.randn(2, 6)
    expected = model(x)
    console, seen = console_on(model, PLANS[plan])
    with torch.device("meta"):
        out = console.run(x)
    assert torch.equal(out, expected)
    assert seen.bugs == []


@pytest.mark.parametrize("entry", [entry for entry in ZOO if entry.name in ("mlp", "streams")], ids=str)
def test_a_generator_of_the_users_own_is_left_alone(entry: Entry) -> None:
    """Lines of the user may draw from it; the debugger itself never does."""
    mine = torch.Generator().manual_seed(5), random.Random(5), np.random.default_rng(5)
    play(entry, "train", [*["step", "stats", "inspect out", "where"] * 10, "continue"])
    again = torch.Generator().manual_seed(5), random.Random(5), np.random.default_rng(5)
    assert torch.equal(mine[0].get_state(), again[0].get_state())
    assert mine[1].getstate() == again[1].getstate()
    assert mine[2].bit_generator.state == again[2].bit_generator.state


def test_the_stdout_of_the_program_stays_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    play(entry_named("mlp"), "train", PLANS["commands"])
    assert capsys.readouterr() == ("", "")
