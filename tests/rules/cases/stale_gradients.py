"""R2: `zero_grad()` is never called."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

PLACE = "loss.backward()"


def fires() -> None:
    _train(clears=False)


def silent() -> None:
    """Clears the gradients, and accumulates over two batches."""
    _train(clears=True)


def _train(*, clears: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(30):
        for _ in range(2):
            x = torch.randn(16, 8)
            loss = F.cross_entropy(model(x), x[:, :3].argmax(1)) / 2
            loss.backward()
        optimizer.step()
        if clears:
            optimizer.zero_grad()
