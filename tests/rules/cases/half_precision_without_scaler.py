"""R30: autocast to float16 without a gradient scaler."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

PLACE = "loss.backward()"


def fires() -> None:
    _train(torch.float16)


def silent() -> None:
    """bfloat16 has the range of float32."""
    _train(torch.bfloat16)


def _train(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(20):
        x = torch.randn(16, 8)
        with torch.autocast("cpu", dtype):
            loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
