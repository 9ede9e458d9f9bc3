"""R37: the output layer has a copy of the embedding."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

NAMES = ("embedding.weight", "head.weight")


class _Model(nn.Module):
    def __init__(self, *, copied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.body = nn.Linear(16, 16)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = (
            nn.Parameter(self.embedding.weight.detach().clone()) if copied else self.embedding.weight
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.gelu(self.body(self.embedding(x))))


def fires() -> None:
    _train(copied=True)


def silent() -> None:
    _train(copied=False)


def _train(*, copied: bool) -> None:
    torch.manual_seed(0)
    model = _Model(copied=copied)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(30):
        x = torch.randint(32, (16, 8))
        loss = F.cross_entropy(model(x).flatten(0, 1), (x * 3 % 32).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
