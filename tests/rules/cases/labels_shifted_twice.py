"""T3: the data are shifted, and the model shifts them once more."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from token_models import TOKENS, TinyGPT, text

PLACE = "loss = model(tokens[:, :-1], labels)[0]"


class MakesLoss(TinyGPT):
    """Shifts its labels, as models of transformers do."""

    def forward(self, tokens: Tensor, labels: Tensor) -> Any:  # type: ignore[override]
        logits = super().forward(tokens)
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, TOKENS), labels[:, 1:].reshape(-1))
        return loss, logits


def fires() -> None:
    _train(shifts=True)


def silent() -> None:
    _train(shifts=False)


def _train(*, shifts: bool) -> None:
    torch.manual_seed(0)
    model = MakesLoss()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(30):
        tokens = text()
        labels = tokens[:, 1:] if shifts else tokens[:, :-1]
        loss = model(tokens[:, :-1], labels)[0]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
