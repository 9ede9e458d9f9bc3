"""R25: the scheduler steps at the top of the loop."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import nn

NAMES = ("StepLR",)


def fires() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _train(first=True)


def silent() -> None:
    _train(first=False)


def _train(*, first: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for _ in range(4):
        if first:
            scheduler.step()
        for _ in range(8):
            x = torch.randn(16, 8)
            loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if not first:
            scheduler.step()
