"""R33: the samples come sorted by their label."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

PLACE = "loss = F.cross_entropy(model(x[part]), y[part])"


def fires() -> None:
    _train(sorts=True)


def silent() -> None:
    """The same samples in another order in each epoch."""
    _train(sorts=False)


def _train(*, sorts: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(512, 8)
    y = x[:, :4].argmax(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(6):
        order = y.argsort() if sorts else torch.randperm(512)
        for part in order.split(32):
            loss = F.cross_entropy(model(x[part]), y[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
