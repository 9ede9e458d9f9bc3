"""Regression on a table: standardised columns, a tanh network, SGD, a rate that is lowered on plateaus."""

from __future__ import annotations

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def load_table(count: int):
    """Columns with units: year, area, rooms, income, six more; the price in thousands."""
    year = 1950 + 70 * torch.rand(count)
    area = 30 + 150 * torch.rand(count)
    rooms = (area / 25 + torch.randn(count)).clamp(1, 9).round()
    income = 20_000 + 60_000 * torch.rand(count)
    others = torch.randn(count, 6)
    price = 1.5 * area + 0.002 * income + 20 * torch.sin((year - 1950) / 12) + 8 * others[:, 0] * others[:, 1]
    features = torch.cat([torch.stack([year, area, rooms, income], 1), others], 1)
    return features, price + 4 * torch.randn(count)


class Scaler:
    def __init__(self, values):
        self.mean, self.std = values.mean(0), values.std(0)

    def __call__(self, values):
        return (values - self.mean) / self.std


class Regressor(nn.Module):
    def __init__(self, columns: int = 10, hidden: int = 64) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(columns, hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
            nn.Linear(hidden, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(-1)


def rmse(model, loader, loss_fn):
    model.eval()
    with torch.no_grad():
        squares = [loss_fn(model(x), y).item() for x, y in loader]
    return (sum(squares) / len(squares)) ** 0.5


def main(seed: int = 0, steps: int = 260):
    torch.manual_seed(seed)
    features, price = load_table(1500)
    train_x, val_x = features[:1200], features[1200:]
    train_y, val_y = price[:1200], price[1200:]
    scale_x, scale_y = Scaler(train_x), Scaler(train_y)
    train_x, val_x = scale_x(train_x), scale_x(val_x)
    train_y, val_y = scale_y(train_y), scale_y(val_y)
    train_loader = DataLoader(TensorDataset(train_x, train_y), batch_size=40, shuffle=True)
    val_loader = DataLoader(TensorDataset(val_x, val_y), batch_size=100)
    model = Regressor()
    loss_fn = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2)
    losses: list[float] = []
    while len(losses) < steps:
        model.train()
        for x, y in train_loader:
            pred = model(x)
            loss = loss_fn(pred, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) >= steps:
                break
        scheduler.step(rmse(model, val_loader, loss_fn))
    return losses, model
