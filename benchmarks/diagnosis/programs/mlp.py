"""An MLP for ten classes: dropout, AdamW, a cosine schedule, validation after each epoch."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

CLASSES = 10
FEATURES = 32


def make_data(count: int = 1600) -> TensorDataset:
    """Two clusters for each class, standardised."""
    y = torch.arange(count) * CLASSES // count
    centres = torch.randn(2, CLASSES, FEATURES) * 1.2
    side = torch.randint(0, 2, (count,))
    x = centres[side, y] + torch.randn(count, FEATURES)
    x = (x - x.mean(0)) / x.std(0)
    return TensorDataset(x, y)


class Net(nn.Module):
    def __init__(self, hidden: int = 64, depth: int = 3, dropout: float = 0.1) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, hidden)
        self.body = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(depth - 1))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, CLASSES)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for layer in [self.first, *self.body]:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        x = torch.relu(self.first(x))
        for layer in self.body:
            x = torch.relu(layer(x))
            x = self.dropout(x)
        return self.head(x)


def evaluate(model, loader, criterion):
    model.eval()
    total, right, seen = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            out = model(x)
            total += criterion(out, y).item() * len(y)
            right += (out.argmax(1) == y).sum().item()
            seen += len(y)
    return total / seen, right / seen


def train_epoch(model, loader, criterion, optimizer, scheduler, losses, steps):
    model.train()
    running = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = criterion(out, y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        running += loss.item()
        losses.append(loss.item())
        if len(losses) >= steps:
            break
    return running / len(loader)


def main(seed: int = 0, steps: int = 240):
    torch.manual_seed(seed)
    data = make_data()
    train_set, val_set = random_split(data, [1280, 320])
    train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=64)
    model = Net()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    losses: list[float] = []
    while len(losses) < steps:
        train_epoch(model, train_loader, criterion, optimizer, scheduler, losses, steps)
        evaluate(model, val_loader, criterion)
    return losses, model
