"""The line where a value stopped being finite is named, and the second run leaves no trace."""

from __future__ import annotations

import linecache
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerstep.doctor.finding import Finding
from layerstep.doctor.watch import watching


class Divides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 2)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop(self.first(x))
        scaled = hidden / (hidden - hidden.detach()).abs().sum()
        return self.last(scaled)


class HasNoSlope(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(1, 2)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.first(x))
        away = hidden - hidden.detach()
        length = torch.sqrt((away * away).sum(1, keepdim=True))
        return self.last(length)


def _train(make: Callable[[], nn.Module], *, with_doctor: bool) -> tuple[list[Finding], list[Tensor]]:
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def loop() -> None:
        for _ in range(4):
            x = torch.randn(8, 8)
            loss = F.cross_entropy(model(x), x[:, :2].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    if not with_doctor:
        loop()
        return [], [*model.state_dict().values(), torch.rand(3)]
    with watching("extreme") as doctor:
        loop()
    return doctor.findings, [*model.state_dict().values(), torch.rand(3)]


@pytest.mark.parametrize(
    ("make", "line", "word"),
    [
        (Divides, "scaled = hidden / (hidden - hidden.detach()).abs().sum()", "div"),
        (HasNoSlope, "length = torch.sqrt((away * away).sum(1, keepdim=True))", "derivative of sqrt"),
    ],
)
def test_the_line_of_the_operation_is_named(make: Callable[[], nn.Module], line: str, word: str) -> None:
    findings, _ = _train(make, with_doctor=True)
    first = findings[0]
    assert first.rule == "non-finite"
    assert linecache.getline(first.where.file, first.where.line).strip() == line
    assert word in first.text


@pytest.mark.parametrize("make", [Divides, HasNoSlope])
def test_the_second_run_leaves_no_trace(make: Callable[[], nn.Module]) -> None:
    """Parameters, buffers and random numbers are those of a run without the doctor."""
    _, bare = _train(make, with_doctor=False)
    _, watched = _train(make, with_doctor=True)
    for one, other in zip(bare, watched, strict=True):
        assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))
