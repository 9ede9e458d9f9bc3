"""R11: weights with a standard deviation of 1."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

NAMES = ("0", "0.weight")


def fires() -> None:
    _train(std=1.0)


def silent() -> None:
    _train(std=128**-0.5)


def _train(*, std: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, 3),
    )
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=std)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(30):
        x = torch.randn(16, 128)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
