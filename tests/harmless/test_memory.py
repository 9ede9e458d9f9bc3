"""A session keeps nothing alive that the run has let go of."""

from __future__ import annotations

import gc
import io
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layerstep
from layerstep import DebugConsole
from layerstep.frontends.choose import open_session
from zoo import MLP, console_on

LOOKS = {
    "nothing": (),
    "where": ("where", "list", "tree", "up", "list", "down"),
    "names": ("hidden.sum()", "x", "out", "inp", "[t.shape for t in (x, hidden)]", "locals()", "dir()"),
    "look": ("inspect out", "stats inp", "print hidden", "inspect hidden", "stats x"),
    "containers": ("(hidden, x)", "inspect [hidden, out]", "print {'h': hidden}", "inp", "kwargs", "$1"),
    "assignments": ("mine = hidden * 2", "mine.sum()"),
    "mistakes": ("hidden.no_such", "1 / 0", "hidden @ 3", "stats nothing", "inspect hidden.no_such"),
    "watch": ("watch hidden.sum()", "watch out.shape"),
}


class Dropping(nn.Module):
    """Lets go of a tensor before the end of its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.alive: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.ones_like(x).neg_()
        dropped = weakref.ref(hidden)
        y = self.first(x)
        del hidden
        self.alive.append(dropped() is not None)
        return self.second(y)


class Passing(Dropping):
    """The same with a tensor that a module took and one that it made."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.ones_like(x).neg_()
        made = self.first(hidden)
        dropped = weakref.ref(hidden), weakref.ref(made)
        y = made.detach().clone()
        del hidden, made
        self.alive.append(any(reference() is not None for reference in dropped))
        return self.second(y)


def _lines(looks: Iterable[str], resume: str) -> list[str]:
    return ["break first", "break first enter", *["continue", *looks] * 2, resume]


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """What only the cyclic collector frees is not free while the run needs the memory."""
    gc.collect()
    gc.freeze()  # so that the collections of the tests look at their own objects only
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("kind", [Dropping, Passing])
@pytest.mark.parametrize("looks", LOOKS)
@pytest.mark.parametrize("resume", ["continue", "detach"])
def test_a_tensor_that_forward_drops_is_freed(kind: type[Dropping], looks: str, resume: str) -> None:
    model = kind().eval()
    console, seen = console_on(model, _lines(LOOKS[looks], resume))
    with torch.no_grad():
        console.run(torch.ones(2, 4))
    assert len(seen.stops) == 2
    assert model.alive == [False]


ASKING = {
    "condition": ["break first if hidden.sum() > 9"],
    "condition on the values": ["break first if out.sum() > 99"],
    "condition that raises": ["break first if hidden.no_such", "continue"],
    "log": ['log first "{hidden.sum()} {out.shape} {x.mean()}"'],
    "until": ["until out.sum() > 99"],
}


@pytest.mark.parametrize("kind", [Dropping, Passing])
@pytest.mark.parametrize("asking", ASKING)
def test_a_tensor_that_a_condition_read_is_freed(kind: type[Dropping], asking: str) -> None:
    model = kind().eval()
    console, _ = console_on(model, [*ASKING[asking], "continue"])
    with torch.no_grad():
        console.run(torch.ones(2, 4))
    assert model.alive == [False]


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("look", ["where", "out", "inspect out", "(inp, out)", "inspect [out]"])
def test_the_output_of_a_run_is_freed(grad: bool, look: str) -> None:
    """Kept values, results and the graph behind them are gone with the next forward."""
    model = MLP()
    console, _ = console_on(model, ["break **", "continue", *[look, "step"] * 8, *["continue"] * 8])
    with torch.set_grad_enabled(grad), console:
        out = model(torch.ones(2, 6))
        dropped = weakref.ref(out)
        del out
        model(torch.ones(2, 6))
        assert dropped() is None


def test_a_step_over_many_layers_holds_no_more_of_them_than_the_budget() -> None:
    """What a step passes is kept for the prompt, by fewer modules than are counted at once, too."""

    class Large(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            out = x + 1
            made.append(weakref.ref(out))
            alive.append(sum(each() is not None for each in made))
            return out

    made: list[weakref.ref[Tensor]] = []
    alive: list[int] = []
    model = nn.Sequential(Large(), nn.Sequential(*(Large() for _ in range(40))), Large())
    console, seen = console_on(model, ["config keep_bytes 65536", "break 0", "continue", "next", "continue"])
    with torch.no_grad(), console:
        model(torch.ones(1024))  # 4 KiB; an input and an output each
    assert len(seen.stops) == 2 and len(alive) == 42
    assert max(alive) <= 65536 // 4096 + 2


def test_the_inputs_of_a_run_are_freed() -> None:
    model = MLP()
    console, seen = console_on(model, ["break head", "continue", "where", "up", "up", "inp", "continue"])
    with console:
        x = torch.ones(2, 6)
        dropped = weakref.ref(x)
        model(x).sum().backward()
        del x
        assert dropped() is None
    assert seen.stops


@pytest.mark.parametrize("looks", [(), ("where", "tree"), ("model",), ("mod", "inspect model"), ("head",)])
def test_a_model_is_not_kept_alive_by_a_session(looks: tuple[str, ...]) -> None:
    model = MLP()
    lines = ["break head", "break **", "continue", *looks, "step", *looks, "continue"]
    console = DebugConsole(model, commands=[*lines, *["continue"] * 20], output=io.StringIO())
    session = console.attach().session
    model(torch.ones(1, 6))
    dropped = weakref.ref(model)
    del model, console
    gc.collect()
    assert dropped() is None
    assert session.run.is_attached
    session.detach()
    assert len(session.run.models) == 0


def test_a_model_that_was_found_is_not_kept_alive() -> None:
    session, _ = open_session(commands=["break head", *["continue"] * 5], output=io.StringIO())
    session.attach(discover=True)
    try:
        session.start(ask=False)
        dropped = weakref.ref(_made_and_run())
        gc.collect()
        assert dropped() is None
        _made_and_run()
        assert len(session.run.models) <= 1
    finally:
        session.detach()


def _made_and_run() -> nn.Module:
    model = MLP()
    model(torch.ones(1, 6))
    return model


def test_a_session_is_not_kept_alive_by_its_model() -> None:
    model = MLP()
    console, _ = console_on(model, ["break **", "continue", "stats out", "step", "continue"])
    console.run(torch.ones(1, 6))
    session = weakref.ref(console.session)
    del console
    gc.collect()
    assert session() is None


def test_a_dictionary_of_locals_stays_as_the_user_made_it() -> None:
    """`locals()` is the very dictionary that looking at a frame fills."""

    class Configured(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = nn.Linear(4, 4)

        def forward(self, x: Tensor, scale: float = 2.0) -> Tensor:
            options = locals()
            y = self.first(x)
            return self.second(y) * options["scale"]

    model = Configured()
    expected = model(torch.ones(1, 4))
    console, seen = console_on(model, ["break first", "continue", "where", "x.sum()", "step", "continue"])
    assert torch.equal(console.run(torch.ones(1, 4)), expected)
    assert len(seen.stops) == 2


def test_the_locals_of_a_script_stay_when_its_model_is_found() -> None:
    session, _ = open_session(commands=[], output=io.StringIO())
    session.attach(discover=True)

    def train(rate: float = 0.1, steps: int = 2) -> dict[str, Any]:
        options = locals()
        model = MLP()
        for _ in range(steps):
            model(torch.ones(1, 6))
        return options

    try:
        options = train()
    finally:
        session.detach()
    assert options["rate"] == 0.1 and options["steps"] == 2


def test_set_trace_keeps_nothing() -> None:
    x = torch.ones(3)
    dropped = weakref.ref(x)
    layerstep.set_trace()  # no terminal and nothing to ask: it goes on
    console = layerstep.api._current
    try:
        del x
        assert dropped() is None
    finally:
        if console is not None:
            console.detach()
        layerstep.api.use_session(None)
