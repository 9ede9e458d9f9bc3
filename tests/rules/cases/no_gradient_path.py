"""R4: the output of the encoder is detached."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

NAMES = ("encoder.2",)


class _Model(nn.Module):
    def __init__(self, *, cut: bool) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16))
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(16, 3))
        self.cut = cut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.encoder(x)
        return self.head(features.detach() if self.cut else features)


def fires() -> None:
    _train(cut=True)


def silent() -> None:
    _train(cut=False)


def _train(*, cut: bool) -> None:
    torch.manual_seed(0)
    model = _Model(cut=cut)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(30):
        x = torch.randn(16, 8)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
