"""A profile changes nothing in any model of the zoo, and leaves nothing on it, whatever ends it."""

from __future__ import annotations

import copy
import functools
import io
import threading

import pytest
import torch
from torch import nn

import layerstep
from layerstep.profile.profiling import Profile
from zoo import MLP, ZOO, Entry, Run, console_on, differences, entry_named, loop, play, seed, taps_on

CASES = [pytest.param(entry, mode, id=f"{entry}-{mode}") for entry in ZOO for mode in entry.modes]
ITERATIONS = 4


def _sgd(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)  # type: ignore[arg-type]


@functools.cache
def bare(name: str, mode: str) -> Run:
    return play(entry_named(name), mode, iterations=ITERATIONS, optimizer=_sgd)


@pytest.mark.parametrize("entry, mode", CASES)
def test_a_profiled_run_is_the_same(entry: Entry, mode: str) -> None:
    run = play(entry, mode, ["profile on", "continue"], iterations=ITERATIONS, optimizer=_sgd)
    assert not differences(bare(entry.name, mode).state, run.state)
    assert "internal" not in run.seen.text and "detached" not in run.seen.text, run.seen.text
    assert not taps_on(run.model)


@pytest.mark.parametrize("entry, mode", CASES)
def test_a_profiled_run_with_stops_is_the_same(entry: Entry, mode: str) -> None:
    lines = [
        "profile on",
        f"break {entry.inner}",
        "continue",
        "stats",
        "step",
        "continue",
        "delete 1",
        "continue",
    ]
    run = play(entry, mode, [*lines, *["continue"] * 9], iterations=ITERATIONS, optimizer=_sgd)
    assert not differences(bare(entry.name, mode).state, run.state)
    assert "detached" not in run.seen.text, run.seen.text
    assert not taps_on(run.model)


def _profiled(model: nn.Module) -> layerstep.DebugConsole:
    console, _ = console_on(model, ["profile on"])
    return console


def test_a_model_can_be_copied_and_saved_while_it_is_profiled() -> None:
    seed(0)
    model, x = MLP(), entry_named("mlp").feed()[0][0]
    with _profiled(model):
        model(x)
        assert not taps_on(model), "the calls are timed with nothing on the model"
        twin = copy.deepcopy(model)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        for other in (twin, loaded):
            assert not taps_on(other)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.zero_()
            model.eval(), twin.eval(), loaded.eval()
            assert not torch.equal(twin(x), model(x)), "the copy runs on its own weights"
            assert torch.equal(loaded(x), model(x))
    assert not taps_on(model)


def test_a_forward_of_the_users_is_put_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    own = model[1].forward = lambda x: x * 2  # type: ignore[method-assign]
    with _profiled(model):
        assert torch.equal(model(torch.ones(1, 2)), model[0](torch.ones(1, 2)) * 2)
    assert model[1].__dict__["forward"] is own
    assert "forward" not in model[0].__dict__


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_after_an_exception(error: type[BaseException]) -> None:
    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise error("of the model")

    model = nn.Sequential(nn.Linear(2, 2), Failing())
    with pytest.raises(error), _profiled(model):
        model(torch.ones(1, 2))
    assert not taps_on(model)
    assert not [t for t in threading.enumerate() if t.name == "layerstep profile" and not t.daemon]


def test_switching_off_takes_everything_off_and_a_live_graph_goes_on() -> None:
    model = MLP()
    x = entry_named("mlp").feed()[0][0]
    console, _ = console_on(model, [])
    with console:
        console.execute("profile on")
        loss = model(x).sum()
        console.execute("profile off")
        assert not taps_on(model) and not console.session.run.training.before
        loss.backward()  # its nodes were marked: no mark is made any more
        assert not console.session.instruments.get(Profile).clock.log
    assert all(p.grad is not None for p in model.parameters())


def test_forwards_count_on_when_the_profile_is_off() -> None:
    entry = entry_named("mlp")
    model = entry.build()
    console, seen = console_on(model, ["profile 1"])
    with console:
        loop(entry, model, "eval", 6)
    assert "1 forward timed" in seen.text
    assert not taps_on(model)
