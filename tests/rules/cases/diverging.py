"""R19: a learning rate that is far too large from step 80 on."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

PLACE = "loss = F.cross_entropy(model(x), y)"


def fires() -> None:
    _train(400.0)


def silent() -> None:
    """A learning rate that stays small."""
    _train(1.0)


def _train(later: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for at in range(260):
        optimizer.param_groups[0]["lr"] = 0.05 * (later if at > 80 else 1.0)
        x = torch.randn(64, 8)
        y = x[:, :4].argmax(1)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
