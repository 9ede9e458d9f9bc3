"""A model that is being debugged can be copied, pickled and saved, and the copy is not debugged."""

from __future__ import annotations

import copy
import functools
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from layerstep import DebugConsole
from zoo import MLP, ZOO, Entry, console_on, differences, entry_named, loop, play, seed, taps_on


def by_pickle(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(model))


def by_save(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": by_pickle,
    "save": by_save,
}


def _mode(entry: Entry) -> str:
    return entry.modes[0]


@functools.cache
def works_bare(name: str, way: str) -> bool:
    """Not every model can be copied every way: that of a scripted one has parameters that are no leaves."""
    seed(0)
    try:
        twin = WAYS[way](entry_named(name).build())
    except Exception:
        return False
    return all(parameter.is_leaf for parameter in twin.parameters())


@functools.cache
def bare(name: str) -> dict[str, Any]:
    entry = entry_named(name)
    return play(entry, _mode(entry)).state


CASES = [pytest.param(entry, way, id=f"{entry}-{way}") for entry in ZOO for way in WAYS]


@pytest.mark.parametrize("entry, way", CASES)
def test_a_copy_made_while_attached_runs_as_the_bare_model(entry: Entry, way: str) -> None:
    if not works_bare(entry.name, way):
        pytest.skip(f"{entry} cannot be copied by {way} without a debugger either")
    seed(0)
    model = entry.build()
    console, seen = console_on(model, ["break **", "break ** enter", f"log {entry.inner} 'x'", "continue"])
    with console:
        assert taps_on(model)
        twin = WAYS[way](model)
        assert taps_on(twin) == [], "a live tap was copied"
        seed(1)
        state = loop(entry, twin, _mode(entry))
    assert not seen.stops, "the copy stopped"
    expected = bare(entry.name)
    assert differences(_values(expected), _values(state), last_digits=entry.fused) == []


def _values(state: dict[str, Any]) -> dict[str, Any]:
    """A copy begins with version counters of its own."""
    return {key: value for key, value in state.items() if key != "versions"}


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_made_at_a_stop(way: str) -> None:
    """At the prompt, while every module is tapped by `step`."""
    seed(0)
    model = MLP()
    made: list[nn.Module] = []
    model.make = lambda: made.append(WAYS[way](_without_make(model)))
    console, seen = console_on(model, ["step", "step", "model.make()", "step", "continue"])
    seed(1)
    console.run(torch.randn(2, 6))
    assert len(seen.stops) == 3
    assert taps_on(made[0]) == []
    x = torch.randn(2, 6)
    assert torch.equal(made[0].eval()(x), model.eval()(x))


def _without_make(model: nn.Module) -> nn.Module:
    twin = copy.copy(model)
    del twin.__dict__["make"]
    return twin


def test_a_copy_of_a_copy() -> None:
    model = MLP()
    with console_on(model, ["break **", "continue"])[0]:
        twin = copy.deepcopy(copy.deepcopy(model))
        twin = by_save(by_pickle(twin))
    assert torch.equal(twin.eval()(torch.ones(1, 6)), model.eval()(torch.ones(1, 6)))


class WithoutLayerstep(pickle.Unpickler):
    """Loads as a machine would that has no layerstep."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "layerstep":
            raise ModuleNotFoundError(f"No module named {module!r}")
        return super().find_class(module, name)


def test_a_saved_model_loads_where_there_is_no_layerstep() -> None:
    """The checkpoint of a debugged training run goes to a server."""
    seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).eval()
    with console_on(model, ["break **", "break ** enter", "continue"])[0]:
        saved = pickle.dumps(model)
    twin = WithoutLayerstep(io.BytesIO(saved)).load()
    assert torch.equal(twin(torch.ones(2)), model(torch.ones(2)))


def test_a_state_dict_knows_nothing_of_the_debugger() -> None:
    seed(0)
    model = MLP()
    before = list(model.state_dict())
    with console_on(model, ["break **", "continue"])[0]:
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
    file.seek(0)
    assert list(torch.load(file, weights_only=True)) == before


@pytest.mark.parametrize("way", WAYS)
def test_the_original_still_stops_after_it_was_copied(way: str) -> None:
    model = MLP()
    console, seen = console_on(model, ["break head", "continue", "continue"])
    with console:
        WAYS[way](model)
        model(torch.ones(1, 6))
    assert [path for path, _ in seen.stops] == ["head"]
    assert isinstance(console, DebugConsole) and not taps_on(model)
