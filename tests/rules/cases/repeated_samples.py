"""R34: two workers draw the same samples, so each batch comes twice."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

NAMES = ["model"]


def fires() -> None:
    _train(copies=2)


def silent() -> None:
    """Several steps on the same batch, as a policy is trained on what it has played."""
    _train(copies=1)


def _train(*, copies: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(20):
        batch = torch.randn(32, 8)
        for _ in range(2):
            x = batch.clone() if copies == 2 else batch
            loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
