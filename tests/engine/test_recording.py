"""Recordings: statistics and copies of layers over the forwards, trends, earlier values, leaks."""

from __future__ import annotations

import gc
import io
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from layerstep import DebugConsole
from layerstep.errors import UnknownPath
from layerstep.expressions.recordings import FACTS_BYTES, Recorded, Recordings
from layerstep.memory.holders import holder_of


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
