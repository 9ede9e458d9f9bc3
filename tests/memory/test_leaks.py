"""Leaks: what piles up over the steps, who holds it, the line that adds to it, and the graph behind it."""

from __future__ import annotations

import gc
import io
import itertools
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layerstep.memory.census as census_module
from layerstep import DebugConsole
from layerstep.memory.census import Count, census_of
from layerstep.memory.leaks import Leak, find_leaks, growth
from layerstep.render.screen import to_text
from play import play, script_named

STEPS = 8


pytestmark = [pytest.mark.own_process, pytest.mark.usefixtures("only_their_own")]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def leaks_of(console: DebugConsole) -> list[Leak]:
    return find_leaks(census_of(console.session), console.session.run.models)


def console_on(model: nn.Module) -> DebugConsole:
    return DebugConsole(model, commands=["leaks on"], output=io.StringIO())


@pytest.mark.parametrize(
    "name, forward, line, holder",
    [
        ("kept_losses", 21, "losses.append(", "losses[…] in <module>()"),
        ("growing_cache", 11, "self.seen.append(", "a Cached.seen"),
    ],
)
def test_a_planted_leak_is_named_with_its_line(name: str, forward: int, line: str, holder: str) -> None:
    script = script_named(f"costs/{name}")
    lines = ["leaks on", f"tbreak ** if forward == {forward}", "continue", "leaks", "detach"]
    screen, code = play(script, lines, width=200)
    assert code == 0
    source = Path(script).read_text().splitlines()
    number = next(i for i, text in enumerate(source, 1) if line in text)
    assert f"grows at  {script.name}:{number}  {source[number - 1].strip()}" in screen
    assert holder in screen
    assert screen.count("held by") == 1, "one leak was planted"


def test_the_graph_behind_a_loss_is_counted() -> None:
    model, kept = net(), []
    with console_on(model) as console:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(STEPS):
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            kept.append(model(torch.ones(32, 8)).mean())
        (leak,) = leaks_of(console)
    assert leak.tensors == leak.steps or leak.tensors > leak.steps
    assert leak.nodes % leak.tensors == 0 and leak.nodes > 5 * leak.tensors
    saved = 32 * 8 * 4 + 32 * 16 * 4  # what the two linear layers were given; the ReLU shares the second
    assert leak.graph_bytes == leak.tensors * saved
    assert leak.holder.startswith("kept[…] in test_the_graph_behind_a_loss_is_counted()")
    assert leak.line is not None and "kept.append" in leak.line.text


def test_asking_twice_does_not_count_what_the_first_question_has_unveiled() -> None:
    gc.collect()
    gc.freeze()  # what tests before have left would go away in the middle of this one
    model, kept = net(), []
    with console_on(model) as console:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(STEPS + 4):
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            kept.append(model(torch.ones(32, 8)).mean())
            if step == STEPS:
                assert "tensors like f32[]" in to_text(console.execute("leaks"))  # type: ignore[arg-type]
        counts = [count.tensors for count in census_of(console.session).counts]
    assert len({later - before for before, later in itertools.pairwise(counts)}) == 1, counts


def test_too_few_steps_are_no_verdict() -> None:
    model, kept = net(), []
    with console_on(model) as console:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(12):
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            kept.append(model(torch.ones(32, 8)).mean())
            text = " ".join(to_text(console.execute("leaks")).split())  # type: ignore[arg-type]
            assert "of at least" in text or "held by kept[…]" in text, text


def test_a_running_total_keeps_every_graph() -> None:
    model, total = net(), torch.zeros(())
    with console_on(model) as console:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(STEPS):
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            total = total + model(torch.ones(4, 8)).mean()
        leak = leaks_of(console)[0]
    assert leak.tensors == 1 and leak.steps >= 3
    assert leak.line is not None and leak.line.text.startswith("total = total +")


def test_a_cache_that_is_replaced_by_a_larger_one() -> None:
    model, cache = net(), torch.zeros(0, 8)
    with console_on(model) as console:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(STEPS):
            x = torch.randn(64, 8)
            cache = torch.cat([cache, x])
            model(x).sum().backward()
            optimizer.step()
        screen = to_text(console.execute("leaks"), width=160)  # type: ignore[arg-type]
    assert "cache in test_a_cache_that_is_replaced_by_a_larger_one()" in screen
    assert "cache = torch.cat([cache, x])" in screen and "replaced by a larger one each step" in screen


def test_what_is_kept_on_purpose_is_no_leak() -> None:
    """Data that was there before, the last loss, running means, an optimizer's state, numbers."""
    model, history, recent = net(), [], deque(maxlen=2)
    data = [torch.randn(4, 8) for _ in range(STEPS)]
    with console_on(model) as console:
        optimizer = torch.optim.Adam(model.parameters())
        for x in data:
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history.append(loss.item())
            recent.append(loss)
        assert not leaks_of(console)
        assert "nothing piles up" in to_text(console.execute("leaks"))  # type: ignore[arg-type]


def test_forwards_are_counted_where_nothing_trains() -> None:
    model, kept = net(), []
    with console_on(model) as console, torch.no_grad():
        for _ in range(STEPS):
            kept.append(model(torch.randn(4, 8)))
        census = census_of(console.session)
        assert census.unit == "forward" and len(census.counts) == STEPS
        assert [leak.tensors >= 3 for leak in leaks_of(console)] == [True]


def test_a_census_costs_no_more_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only the census moves on: after the first ones it waits until it may look again."""
    now = [0.0]
    monkeypatch.setattr(census_module.time, "monotonic", lambda: now[0])
    scan = gc.get_objects

    def slow() -> list[Any]:
        now[0] += 1.0
        return scan()

    monkeypatch.setattr(census_module.gc, "get_objects", slow)
    model = net()
    with console_on(model) as console, torch.no_grad():
        for _ in range(100):
            now[0] += 1.0
            model(torch.randn(4, 8))
        taken = len(census_of(console.session).counts)
    assert census_module.ALWAYS < taken <= census_module.ALWAYS + 100 / 20 + 1


def test_growth_needs_steps_and_a_rise() -> None:
    def counts(*sizes: int) -> list[Count]:
        return [Count(step, step, size, 0) for step, size in enumerate(sizes)]

    assert growth(counts(10, 20)) is None
    assert growth(counts(10, 20, 30, 40)) == (1.0, 10.0)
    assert growth(counts(10, 20, 30, 20)) is None


def test_words_of_the_command() -> None:
    model = net()
    with DebugConsole(model, output=io.StringIO()) as console:

        def say(line: str) -> str:
            return to_text(console.execute(line))  # type: ignore[arg-type]

        assert "nothing is counted or recorded" in say("leaks")
        assert "not being counted" in say("leaks off")
        assert "there is on, off" in say("leaks sometimes")
        assert "counting the live tensors" in say("leaks on")
        assert "0 of at least 6 counts" in say("leaks")
        assert "census of live tensors" in say("info cost")
        model(torch.randn(2, 8))
        assert "1 counts are kept" in say("leaks off")
        assert "census of live tensors" not in say("info cost")


class Holding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.by_step: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(x)
        self.by_step[len(self.by_step)] = out.detach()
        return out


def test_a_dictionary_of_a_module_is_named() -> None:
    model = Holding()
    with console_on(model) as console, torch.no_grad():
        for _ in range(STEPS):
            model(torch.randn(4, 8))
        leak = leaks_of(console)[0]
    assert "by_step" in leak.holder and "Holding" in leak.holder
    assert leak.line is not None and leak.line.text.startswith("self.by_step[")
