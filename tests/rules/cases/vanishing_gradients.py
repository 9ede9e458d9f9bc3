"""R14: a deep network of sigmoids."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

NAMES = ("0.weight",)


def fires() -> None:
    _train(nn.Sigmoid)


def silent() -> None:
    _train(nn.ReLU)


def _train(activation: type[nn.Module]) -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(9) for layer in (nn.Linear(32, 32), activation())]
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
    model = nn.Sequential(*layers, nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    for _ in range(60):
        x = torch.randn(16, 32)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
