"""R29: the gradients are clipped while they are scaled."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

PLACE = "nn.utils.clip_grad_norm_(model.parameters(), 0.1)"


def fires() -> None:
    _train(unscales=False)


def silent() -> None:
    _train(unscales=True)


def _train(*, unscales: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(30):
        x = torch.randn(16, 8)
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if unscales:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
