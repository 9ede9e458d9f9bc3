"""R40: steps that jump over the valley to its other side."""

from __future__ import annotations

import torch
from torch import nn

PLACE = "loss = (weight.sum() - 1).abs().mean() + 1e-3"


def fires() -> None:
    _train(1.0)


def silent() -> None:
    """Steps that become smaller and smaller."""
    _train(0.9)


class Weight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.3]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x


def _train(decay: float) -> None:
    torch.manual_seed(0)
    model = Weight()
    optimizer = torch.optim.SGD(model.parameters(), 0.9)
    for _ in range(150):
        weight = model(torch.ones(1))
        loss = (weight.sum() - 1).abs().mean() + 1e-3
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= decay
