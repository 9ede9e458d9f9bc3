"""R23: eval() is missing before the evaluation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

PLACE = "model(x)"


def fires() -> None:
    _train(switches=False)


def silent() -> None:
    """eval() before, train() after it."""
    _train(switches=True)


def _train(*, switches: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(3):
        for _ in range(10):
            x = torch.randn(32, 8)
            loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.train(not switches)
        with torch.no_grad():
            for _ in range(4):
                x = torch.randn(32, 8)
                model(x)
        model.train()
