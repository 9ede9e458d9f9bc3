"""R41: a large model learns 24 noisy samples by heart."""

from __future__ import annotations

import torch
from torch import nn

NAMES = ["model"]


def fires() -> None:
    _train(24, 0.01, 40)


def silent() -> None:
    """Enough samples."""
    _train(2000, 0.001, 10)


def _train(count: int, lr: float, epochs: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 2))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr)

    def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(count, 16)
        return x, (x[:, 0] + torch.randn(count) > 0).long()

    (x, y), (x_test, y_test) = draw(count), draw(200)
    for _ in range(epochs):
        for part in torch.randperm(count).split(max(8, count // 10)):
            loss = criterion(model(x[part]), y[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            criterion(model(x_test), y_test)
