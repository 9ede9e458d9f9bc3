"""R24: the last layer is replaced after the optimizer was made."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

NAMES = ("2.weight",)


def fires() -> None:
    _train(late=True)


def silent() -> None:
    _train(late=False)


def _train(*, late: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 10))
    if not late:
        model[2] = nn.Linear(16, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    if late:
        model[2] = nn.Linear(16, 3)
    for _ in range(30):
        x = torch.randn(16, 8)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
