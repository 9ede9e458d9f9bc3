"""R1: a logarithm of zero in the middle of the model."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

NAMES = ["1"]


class Log(nn.Module):
    def __init__(self, floor: float) -> None:
        super().__init__()
        self.floor = floor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(x.relu() + self.floor)


def fires() -> None:
    _train(0.0)


def silent() -> None:
    """The same model, kept away from zero."""
    _train(1e-3)


def _train(floor: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), Log(floor), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(30):
        x = torch.randn(16, 8)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
