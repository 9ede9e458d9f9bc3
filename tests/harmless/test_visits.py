"""Stepping from the start to the end visits every module call, in the order in which they finish."""

from __future__ import annotations

import functools

import pytest
from torch import nn

from layerstep._torch import is_wrapper, unwrap
from zoo import ZOO, Entry, calls_by_hooks, console_on, entry_named, feeding, seed

CASES = [
    pytest.param(entry, mode, id=f"{entry}-{mode}")
    for entry in ZOO
    for mode in entry.modes
    if mode != "inference"
]


@functools.cache
def stepped(name: str, mode: str, word: str) -> tuple[nn.Module, list[tuple[str, int]]]:
    """One forward with nothing but one command; the model and its stops."""
    entry = entry_named(name)
    seed(0)
    model = entry.build()
    model.train(mode == "train")
    console, seen = console_on(model, [word] * 300)
    seed(1)
    with feeding(entry, mode) as (args, kwargs):
        console.run(*args, **kwargs)
    assert seen.bugs == []
    return model, seen.stops


@pytest.mark.parametrize("entry, mode", CASES)
def test_step_stops_at_every_exit(entry: Entry, mode: str) -> None:
    model, stops = stepped(entry.name, mode, "step")
    modules = list(model.modules())
    # Wrappers (DataParallel, torch.compile) have no path of their own, so nothing stops at them.
    expected = [number for number in calls_by_hooks(entry, mode) if not is_wrapper(modules[number])]
    assert [number for _, number in stops] == expected


@pytest.mark.parametrize("entry, mode", CASES)
def test_a_stop_names_the_module_it_is_at(entry: Entry, mode: str) -> None:
    model, stops = stepped(entry.name, mode, "step")
    modules = list(model.modules())
    root = unwrap(model)
    for path, number in stops:
        assert _at(root, path) is modules[number], path
    assert stops[-1] == (type(root).__name__, modules.index(root))


def _at(root: nn.Module, path: str) -> nn.Module:
    module = root
    for name in path.split(".") if path != type(root).__name__ else ():
        module = unwrap(module._modules[name])
    return module


@pytest.mark.parametrize("entry", [entry for entry in ZOO if not entry.fused], ids=str)
def test_into_stops_at_every_entry(entry: Entry) -> None:
    """As many entries as exits, the outermost first."""
    _, entries = stepped(entry.name, "train", "into")
    _, exits = stepped(entry.name, "train", "step")
    assert sorted(entries) == sorted(exits)
    assert entries[0][0] == exits[-1][0]


@pytest.mark.parametrize("entry", ZOO, ids=str)
def test_a_breakpoint_stops_once_a_call(entry: Entry) -> None:
    mode = entry.modes[0]
    seed(0)
    model = entry.build()
    model.train(mode == "train")
    console, seen = console_on(model, [f"break {entry.inner}", "continue", *["continue"] * 50])
    seed(1)
    with feeding(entry, mode) as (args, kwargs):
        console.run(*args, **kwargs)
    (number,) = {number for _, number in seen.stops}
    called = calls_by_hooks(entry, mode).count(number)
    named = list(model.named_modules(remove_duplicate=False))
    names = sum(module is list(model.modules())[number] for _, module in named)
    assert len(seen.stops) == called // names, "a module with two names stops by the one that the point has"
