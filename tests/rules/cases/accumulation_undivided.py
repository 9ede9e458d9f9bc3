"""R28: four batches are accumulated, and the loss is not divided."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

PLACE = "loss.backward()"


def fires() -> None:
    _train(1)


def silent() -> None:
    _train(4)


def _train(divided_by: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(20):
        for _ in range(4):
            x = torch.randn(16, 8)
            loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
            if divided_by > 1:
                loss = loss / divided_by
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
