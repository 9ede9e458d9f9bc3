"""R35: the training samples are evaluated on."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

PLACE = "model(part)"


def fires() -> None:
    _train(held_back=False)


def silent() -> None:
    """Samples that were held back."""
    _train(held_back=True)


def _train(*, held_back: bool) -> None:
    torch.manual_seed(0)
    x, other = torch.randn(64, 8), torch.randn(64, 8)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(6):
        for part in x.split(16):
            loss = F.cross_entropy(model(part), part[:, :3].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            for part in (other if held_back else x).split(32):
                model(part)
