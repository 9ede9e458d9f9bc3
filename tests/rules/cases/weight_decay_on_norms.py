"""R36: weight decay on the scales of a norm."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

NAMES = ("1.weight",)


def fires() -> None:
    model = _model()
    _train(model, [{"params": list(model.parameters())}])


def silent() -> None:
    model = _model()
    norm = list(model[1].parameters())
    others = [*model[0].parameters(), *model[3].parameters()]
    _train(model, [{"params": norm, "weight_decay": 0.0}, {"params": others}])


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))


def _train(model: nn.Module, groups: list[dict[str, Any]]) -> None:
    optimizer = torch.optim.AdamW(groups, 1e-3, weight_decay=0.1)
    for _ in range(20):
        x = torch.randn(16, 8)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
