"""R31: parameters in bfloat16 with a small learning rate."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

NAMES = ("0.weight",)


def fires() -> None:
    _train(torch.bfloat16)


def silent() -> None:
    _train(torch.float32)


def _train(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)).to(
        dtype
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(300):
        x = torch.randn(64, 8, dtype=dtype)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
