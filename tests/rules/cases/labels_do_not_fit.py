"""R47: inputs and labels are shuffled with two permutations."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

PLACE = "loss = F.cross_entropy(model(x[a]), y[b])"


def fires() -> None:
    _train(apart=True)


def silent() -> None:
    """One permutation for both."""
    _train(apart=False)


def _train(*, apart: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(96, 8)
    y = x[:, :4].argmax(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(20):
        order, other = torch.randperm(96), torch.randperm(96)
        for a, b in zip(order.split(32), (other if apart else order).split(32), strict=True):
            loss = F.cross_entropy(model(x[a]), y[b])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
