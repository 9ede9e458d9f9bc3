"""R22: the losses are stored with their graphs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

PLACE = "history.append(loss if keeps else loss.item())"


def fires() -> None:
    _train(keeps=True)


def silent() -> None:
    """The numbers are stored."""
    _train(keeps=False)


def _train(*, keeps: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    history = []
    for _ in range(60):
        x = torch.randn(32, 8)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss if keeps else loss.item())
