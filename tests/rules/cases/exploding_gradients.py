"""R15: a recurrent network whose weights enlarge its state at each step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

NAMES = ("again.weight",)


class _Model(nn.Module):
    def __init__(self, radius: float) -> None:
        super().__init__()
        self.first = nn.Linear(4, 32)
        self.again = nn.Linear(32, 32)
        self.last = nn.Linear(32, 1)
        nn.init.orthogonal_(self.again.weight, radius)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(len(x), 32)
        for part in x.unbind(1):
            state = self.again(state) + self.first(part)
        return self.last(state)


def fires() -> None:
    _train(1.5)


def silent() -> None:
    _train(0.7)


def _train(radius: float) -> None:
    torch.manual_seed(0)
    model = _Model(radius)
    optimizer = torch.optim.SGD(model.parameters(), 5e-3)
    for _ in range(30):
        x = torch.randn(16, 20, 4)
        loss = F.mse_loss(model(x), x[:, -1, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
