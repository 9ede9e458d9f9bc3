"""`perturbed?` knows what a typed line wrote, into whatever tensor in reach; the line says so at once."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from zoo import Seen, console_on


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.act = nn.Tanh()
        self.notes = {"seen": [torch.zeros(3)]}

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.lin(x)
        table = {"rows": [hidden * 2]}
        return self.act(hidden + table["rows"][0])  # type: ignore[no-any-return]


class Holder:
    def __init__(self) -> None:
        self.average = torch.ones(4)


def stop_and(*lines: str, at: str = "break act") -> Seen:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    ema = nn.BatchNorm1d(4)  # no part of the model
    holder = Holder()
    batch = torch.ones(2, 4)
    console, seen = console_on(model, [at, "continue", *lines, "perturbed?", "delete", "continue"])
    with console, contextlib.suppress(RuntimeError):  # a backward that finds its tensors written
        for _ in range(2):
            model(batch).sum().backward()
            optimizer.step()
    assert (ema.training, holder.average.numel()) == (True, 4)
    assert not seen.bugs
    return seen


WRITES = [
    ("out.zero_()", "out"),
    ("inp.add_(1)", "inp"),
    ("hidden.mul_(0)", "hidden in forward"),
    ("table['rows'][0].fill_(1)", "table['rows'][0] in forward"),
    ("x.zero_()", "x"),
    ("out.data.zero_()", "out"),
    ("out.detach().numpy().fill(0)", "out"),
    ("mod.weird = inp; inp.zero_()", "inp"),
    ("out.zero_(); 1 / 0", "out"),
    ("model.notes['seen'][0].add_(1)", "notes['seen'][0]"),
    ("lin.weight.data.zero_()", "lin.weight"),
    ("print(out.neg_().sum())", "out"),
]


@pytest.mark.parametrize(("line", "name"), WRITES)
def test_a_line_that_writes_is_named(line: str, name: str) -> None:
    seen = stop_and(line)
    assert "yes:" in seen.verdicts[-1]
    assert name in seen.text.rpartition("perturbed?")[2]


@pytest.mark.parametrize("line", ["out.zero_()", "inp.add_(1)", "hidden.mul_(0)"])
def test_the_line_says_so_at_once(line: str) -> None:
    assert f"this line changed {line.partition('.')[0]}" in stop_and(line).text


def test_names_of_the_functions_outside_are_watched() -> None:
    frame = "[f for f in __import__('inspect').stack(0) if f.function == 'stop_and'][0].frame.f_locals"
    for what, name in (
        ("['ema'].running_mean.add_(1)", "ema.running_mean"),
        ("['holder'].average.zero_()", "holder.average"),
        ("['batch'].zero_()", "batch"),
    ):
        answer = stop_and(f"{frame}{what}").text.rpartition("perturbed?")[2]
        assert "yes:" in answer and name in answer


def test_the_state_of_an_optimizer_and_gradients_are_watched() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    lines = [
        "_opt.state[mod.weight]['exp_avg'].zero_()",
        "mod.weight.grad.zero_()",
        "perturbed?",
    ]
    console, seen = console_on(model, ["until forward 2", *lines, "continue"])
    console.session.run.scope["_opt"] = optimizer
    with console:
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert "exp_avg" in seen.text.rpartition("perturbed?")[2]
    assert "weight.grad" in seen.text.rpartition("perturbed?")[2]


@pytest.mark.parametrize(
    "line",
    [
        "out.mean()",
        "out + 1",
        "mod(inp)",
        "model(x)",
        "[t.sum() for t in table['rows']]",
        "out.clone().zero_()",
        "torch.rand(3)",
    ],
)
def test_a_line_that_only_reads_is_not_accused(line: str) -> None:
    answer = stop_and(line).verdicts[-1]
    assert answer.lstrip("✓· ").startswith("no:")


def test_inference_tensors_are_watched_by_their_values() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    console, seen = console_on(model, ["break 1", "continue", "out.zero_()", "perturbed?", "continue"])
    with console, torch.inference_mode():
        model(torch.ones(2, 4))
    assert "yes:" in seen.verdicts[-1]
    assert "this line changed out" in seen.text


def test_what_is_too_large_to_check_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerstep.engine.line_effects.LINE_BYTES", 8)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    console, seen = console_on(model, ["break 1", "continue", "out.mean()", "perturbed?", "continue"])
    with console, torch.inference_mode():
        model(torch.ones(2, 4))
    assert "not checked: out" in " ".join(seen.text.split())


def test_looking_at_what_is_in_reach_runs_no_code_and_holds_nothing() -> None:
    class Touchy:
        def __init__(self) -> None:
            self.value = torch.ones(1)

        def __getattribute__(self, name: str) -> Any:
            raise AssertionError("it was asked")

    model = nn.Linear(2, 2)
    touchy = Touchy()
    console, seen = console_on(model, ["break Linear", "continue", "out.zero_()", "perturbed?", "continue"])
    with console:
        model(torch.ones(1, 2))
    assert type(touchy) is Touchy
    assert "yes:" in seen.verdicts[-1]
    assert not seen.bugs
