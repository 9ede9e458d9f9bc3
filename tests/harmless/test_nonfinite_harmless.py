"""A hunt on every kind of model: every forward and backward is run again, and the run is the same."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from layerstep.nonfinite import catching as hunt
from layerstep.nonfinite import loss_and_backward as aftermath
from layerstep.tensors.finite import Bad
from zoo import MODES, ZOO, Entry, Run, console_on, differences, entry_named, hook_count, play, taps_on

OPTIMIZER = functools.partial(torch.optim.AdamW, lr=0.01)
LINES = ["catch nonfinite", "continue", *["where", "stats out", "continue"] * 12]


@functools.cache
def bare(name: str, mode: str) -> Run:
    return play(entry_named(name), mode, optimizer=OPTIMIZER if mode == "train" else None)


@pytest.fixture(params=["catch nonfinite", "catch nonfinite --every-op"])
def line(request: pytest.FixtureRequest) -> str:
    return str(request.param)


KINDS = [(entry, mode) for entry in ZOO for mode in entry.modes if mode in MODES]


def _same(entry: Entry, mode: str, run: Run) -> None:
    before = bare(entry.name, mode)
    assert differences(before.state, run.state) == []
    assert run.seen.bugs == []
    assert not taps_on(run.model)
    assert hook_count(run.model) == hook_count(before.model)


@pytest.mark.parametrize(("entry", "mode"), KINDS, ids=str)
def test_armed_it_changes_nothing(entry: Entry, mode: str, line: str) -> None:
    optimizer = OPTIMIZER if mode == "train" else None
    _same(entry, mode, play(entry, mode, [line, *LINES[1:]], optimizer=optimizer))


@pytest.mark.parametrize(("entry", "mode"), KINDS, ids=str)
def test_running_again_changes_nothing(entry: Entry, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every output and every gradient is taken for bad, so that everything is run again."""
    wrong = Bad(nan=1, total=1)
    monkeypatch.setattr(hunt, "is_finite", lambda tensor: not tensor.is_floating_point())
    monkeypatch.setattr(hunt, "count_bad", lambda tensor: wrong)
    real: Any = hunt.look_forward
    looked = []

    def look_and_go_on(*args: Any, **kwargs: Any) -> Any:
        looked.append(real(*args, **kwargs))
        return hunt_verdict

    hunt_verdict = type("Verdict", (), {"intended": True, "chain": (_Link(),), "trouble": ""})()
    monkeypatch.setattr(hunt, "look_forward", look_and_go_on)
    monkeypatch.setattr(hunt.NonfiniteSearch, "_tolerate", lambda *_: None)
    monkeypatch.setattr(aftermath, "not_finite", lambda tensors: [0] if list(tensors) else [])
    optimizer = OPTIMIZER if mode == "train" else None
    run = play(entry, mode, LINES, optimizer=optimizer)
    _same(entry, mode, run)
    # the first call of lazy modules makes their parameters, and cannot be run again
    assert any("cannot be run again" not in verdict.trouble for verdict in looked), "nothing was run again"


class _Link:
    bad = Bad()
    name = place = ""


class Nan(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(x)) / (x * 0)


def test_a_typed_why_puts_back_the_statistics_of_batch_norm() -> None:
    """The line's own guard must note them before the rerun sets them to what they were at its beginning."""

    def statistics(lines: list[str]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Nan()
        console, seen = console_on(model, lines)
        with console:
            model(torch.ones(3, 4))
        assert not lines or "div" in seen.text
        return [buffer.clone() for buffer in model.buffers()]

    lines = ["catch nonfinite", "ignore 1 9", "break Nan", "continue", "why out", "delete", "continue"]
    for bare_one, looked_at in zip(statistics([]), statistics(lines), strict=True):
        assert torch.equal(bare_one, looked_at)
