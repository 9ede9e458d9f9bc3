"""R6: the model ends in a softmax, and cross_entropy applies another."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

PLACE = "loss = F.cross_entropy(out, y)"


def fires() -> None:
    _train(nn.Softmax(-1))


def silent() -> None:
    """The softmax of an attention inside the model is none of the loss."""
    _train(nn.Identity())


def _train(last: nn.Module) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Softmax(-1), nn.Linear(16, 3), last)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(30):
        x = torch.randn(16, 8)
        y = x[:, :3].argmax(1)
        out = model(x)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
