"""R49: a recurrent layer that reads the samples of a batch as if they were moments."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NAMES = ("rnn",)


class Tagger(nn.Module):
    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 12, batch_first=batch_first)
        self.head = nn.Linear(12, 2)

    def forward(self, rows: Tensor) -> Tensor:
        out, _ = self.rnn(rows)
        return self.head(out.mean(dim=1))


def fires() -> None:
    _train(batch_first=False)


def silent() -> None:
    _train(batch_first=True)


def _train(*, batch_first: bool) -> None:
    torch.manual_seed(0)
    model = Tagger(batch_first=batch_first)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(30):
        rows = torch.randn(16, 5, 6)
        loss = F.cross_entropy(model(rows), (rows[:, :, 0].sum(1) > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
