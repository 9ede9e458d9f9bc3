"""T2: the labels of a causal model are its own inputs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from token_models import TOKENS, TinyGPT, text

PLACE = "loss = F.cross_entropy(model(given).reshape(-1, TOKENS), tokens.reshape(-1))"


def fires() -> None:
    torch.manual_seed(0)
    _train(TinyGPT(), hidden=0.0)


def silent() -> None:
    """A model that reads both directions restores tokens that were replaced."""
    torch.manual_seed(0)
    _train(TinyGPT(ahead=99), hidden=0.3)


def _train(model: nn.Module, hidden: float) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(30):
        tokens = text()
        given = torch.where(torch.rand(tokens.shape) < hidden, 0, tokens)
        loss = F.cross_entropy(model(given).reshape(-1, TOKENS), tokens.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
