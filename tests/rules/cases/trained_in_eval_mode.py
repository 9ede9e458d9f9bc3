"""R21: the model stays in evaluation mode after the first evaluation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

PLACE = "loss.backward()"


def fires() -> None:
    _train(returns=False)


def silent() -> None:
    """Each epoch begins with train()."""
    _train(returns=True)


def _train(*, returns: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(4):
        if returns:
            model.train()
        for _ in range(10):
            x = torch.randn(32, 8)
            loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for _ in range(3):
                model(torch.randn(32, 8))
