"""Recordings: statistics and copies of layers over the forwards, trends, earlier values, leaks."""

from __future__ import annotations

import gc
import io
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from layerstep import DebugConsole
from layerstep.errors import UnknownPath
from layerstep.expressions.recordings import FACTS_BYTES, Recorded, Recordings
from layerstep.memory.holders import holder_of
from layerstep.tensors.summary import summarize


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.act = nn.ReLU()
        self.last = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.act(self.first(x)))


def told(commands: list[str], *, forwards: int = 3, stop: str = "break last if forward == 3") -> str:
    """What is shown in the third of some forwards."""
    torch.manual_seed(0)
    model, output = Net(), io.StringIO()
    lines = [*commands[:1], stop, "continue", *commands[1:], "continue"]
    with DebugConsole(model, commands=lines, output=output):
        for step in range(forwards):
            model(torch.full((2, 4), float(step)))
    return output.getvalue()


def entry(path: str, forward: int, nbytes: int = 0) -> Recorded:
    value = torch.zeros(nbytes, dtype=torch.uint8) if nbytes else None
    return Recorded(path, forward, facts=(), value=value, nbytes=nbytes)


def test_the_ring_drops_copies_first_and_then_the_oldest_entries() -> None:
    ring = Recordings(most_tensors=2, budget=10 * FACTS_BYTES)
    for forward in range(1, 4):
        ring.add(entry("a", forward, nbytes=10))
    assert [each.value is not None for each in ring.of("a")] == [False, True, True]
    for forward in range(4, 40):
        ring.add(entry("b", forward))
    assert ring.nbytes <= ring.budget
    assert ring.paths == ["b"] and ring.dropped == 29
    assert [each.forward for each in ring.of("b")] == list(range(30, 40))


def test_the_budget_holds_for_copies() -> None:
    ring = Recordings(most_tensors=100, budget=10_000)
    for forward in range(10):
        ring.add(entry("a", forward, nbytes=4_000))
    assert ring.nbytes <= 10_000
    assert ring.of("a")[-1].value is not None


def test_an_earlier_value_counts_in_recorded_forwards() -> None:
    ring = Recordings(most_tensors=9, budget=1 << 20)
    for forward in (1, 11, 21):
        ring.add(Recorded("a", forward, facts=(), value=forward))
    assert ring.value_before("a", forward=21, back=1) == 11
    assert ring.value_before("a", forward=22, back=1) == 21
    with pytest.raises(UnknownPath, match="only 2 earlier"):
        ring.value_before("a", forward=21, back=3)


def test_history_shows_the_trend() -> None:
    text = told(["record first", "history first"])
    assert "forwards 1 to 3, 3 recorded" in text
    rows = [line.split() for line in text.splitlines() if line.split()[:1] in (["1"], ["2"], ["3"])]
    assert [row[0] for row in rows[-3:]] == ["1", "2", "3"]


def test_every_other_forward() -> None:
    text = told(["record first every 2", "history first"])
    assert "forwards 1 to 3, 2 recorded" in text


def test_the_same_layer_in_an_earlier_forward() -> None:
    torch.manual_seed(0)
    model = Net()
    expected = [model(torch.full((2, 4), float(step))).sum().item() for step in range(2)]
    text = told(["record last --tensors", "!print(out@-1.sum().item(), last.output@-2.sum().item())"])
    assert f"{expected[1]} {expected[0]}" in text


def test_without_copies_an_earlier_value_says_how_to_get_one() -> None:
    assert "`record last --tensors` keeps" in " ".join(told(["record last", "out@-1"]).split())
    assert "nothing of last is recorded" in told(["record first", "out@-1"])


def test_two_recordings_of_one_call_are_one_entry() -> None:
    torch.manual_seed(0)
    model = Net()
    lines = ["record **", "record first --tensors", "continue"]
    with DebugConsole(model, commands=lines, output=io.StringIO()) as console:
        model(torch.ones(2, 4))
        model(torch.ones(2, 4))
        entries = console.session.run.recordings.of("first")
    assert [each.forward for each in entries] == [1, 2]
    assert all(each.value is not None for each in entries)


def test_a_recording_can_be_saved_and_set_again(tmp_path: Path) -> None:
    text = told(["record first every 2 --tensors", f"save {tmp_path}/points.txt"])
    assert "✓" in text
    assert (tmp_path / "points.txt").read_text().splitlines()[0] == "record first every 2 --tensors"


def test_recording_holds_nothing_alive() -> None:
    model = Net()
    with DebugConsole(model, commands=["record **", "continue"], output=io.StringIO()):
        out = model(torch.ones(2, 4))
        reference = weakref.ref(out)
        del out
        model(torch.ones(2, 4))
        assert reference() is None


def test_leaks_names_the_holder() -> None:
    torch.manual_seed(0)
    model, output, losses = Net(), io.StringIO(), []
    commands = ["record act", "break last if forward == 3", "continue", "leaks", "continue"]
    with DebugConsole(model, commands=commands, output=output):
        for _ in range(3):
            losses.append(model(torch.ones(2, 4)).sum())
    assert "the autograd graph behind losses" in " ".join(output.getvalue().split())


def test_no_leak_is_said() -> None:
    assert "no recorded output outlived its forward" in told(["record **", "leaks"])


def test_a_holder_is_found_through_containers() -> None:
    class Store:
        pass

    store = Store()
    store.kept = {"a": [torch.ones(2)]}  # type: ignore[attr-defined]
    gc.collect()
    name = holder_of(store.kept["a"][0])  # type: ignore[attr-defined]
    assert "Store" in name and "kept" in name and "'a'" in name


def test_what_is_recorded_stays_in_view_until_the_next_forward() -> None:
    model, output = Net(), io.StringIO()
    points = ["record first --tensors", "break act", "break last"]
    commands = [*points, "continue", "continue", "stats fir*", "continue"]
    with DebugConsole(model, commands=commands, output=output):
        model(torch.ones(2, 4))
    assert "2×8" in output.getvalue()


class Passing(nn.Module):
    """Its second layer returns the tensor of the first, which may be written to in between."""

    def __init__(self, between: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.first, self.same = nn.Linear(4, 8), nn.Identity()
        self.between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        self.between(x)
        return self.same(x)


@pytest.mark.parametrize(
    "between",
    [lambda x: None, lambda x: x.mul_(2), lambda x: x.data.mul_(2), lambda x: x.data.zero_()],
    ids=["nothing", "in place", "past its version", "zeros past its version"],
)
def test_a_tensor_that_two_layers_return_is_recorded_as_each_returned_it(
    between: Callable[[torch.Tensor], object],
) -> None:
    model = Passing(between)
    with (
        torch.no_grad(),
        DebugConsole(model, commands=["record **", "continue"], output=io.StringIO()) as console,
    ):
        out = model(torch.ones(2, 4))
        recordings = console.session.run.recordings
        first, same = (recordings.of(path)[-1].facts[0][1].stats for path in ("first", "same"))
    assert same is not None and first is not None
    assert same.min == out.min().item() and same.max == out.max().item()
    assert same.zero == int((out == 0).sum())
    assert (first == same) == (between(torch.ones(1)) is None)


def test_what_is_recorded_is_what_a_look_at_the_tensor_shows() -> None:
    class Several(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[object, ...]:
            return x * 3, None, x.to(torch.float64) + 1000, x.new_full((2, 2), float("nan"))

    model = nn.Sequential(Several())
    with DebugConsole(model, commands=["record 0", "continue"], output=io.StringIO()) as console:
        output = model(torch.randn(50, 400))
        facts = dict(console.session.run.recordings.everything()[0].facts)
    expected = {f"[{at}]": summarize(output[at], brief=True) for at in (0, 2, 3)}
    assert facts == expected


def test_a_recording_runs_no_operation_and_leaves_numpys_settings_alone() -> None:
    class Seen(TorchDispatchMode):
        names: ClassVar[list[str]] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Softmax(-1))
    nn.init.constant_(model[0].weight, 1e-25)  # its square is no normal number any more
    with Seen():
        model(torch.ones(2, 4))
    bare, Seen.names = Seen.names, []
    with DebugConsole(model, commands=["record **", "continue"], output=io.StringIO()) as console:
        with np.errstate(all="raise"), Seen():
            model(torch.ones(2, 4))
        assert len(console.session.run.recordings) == 4
        assert console.session.run.is_attached
    assert Seen.names == bare


def test_a_module_of_two_names_is_recorded_by_the_one_it_is_called_by() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = self.b = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x))

    model = Shared()
    with DebugConsole(model, commands=["record **", "continue"], output=io.StringIO()) as console:
        model(torch.ones(1, 2))
        assert {"a", "b"} <= set(console.session.run.recordings.paths)


def test_paths_are_those_of_now_when_a_second_model_comes() -> None:
    first, second = Net(), Net()
    with DebugConsole(first, commands=["record **", "continue"], output=io.StringIO()) as console:
        first(torch.ones(2, 4))
        console.session.add_model(second, "other")
        first(torch.ones(2, 4))
        assert {"first", "Net.first"} <= set(console.session.run.recordings.paths)
