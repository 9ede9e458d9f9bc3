"""Prices of houses from a table: numbers and categories with embeddings, Huber loss, a class that trains."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CATEGORIES = (12, 5, 7)
"""How many districts, kinds of building and kinds of heating there are."""


@dataclass
class Config:
    batch_size: int = 64
    lr: float = 3e-3
    weight_decay: float = 1e-4
    hidden: tuple = (96, 64, 32)
    dropout: float = 0.05
    train_rows: int = 3200
    val_rows: int = 400
    eval_every: int = 50


def make_table(count: int, seed: int):
    """Area, rooms, year, income, distance and crime in their own units; categories; the price."""
    generator = torch.Generator().manual_seed(seed)
    fixed = torch.Generator().manual_seed(11)
    effects = [0.5 * torch.randn(size, generator=fixed) for size in CATEGORIES]
    normal = torch.randn(count, 6, generator=generator)
    area = (110 + 40 * normal[:, 0]).clamp(25)
    rooms = (area / 28 + 0.7 * normal[:, 1]).round().clamp(1)
    year = (1975 + 22 * normal[:, 2]).round()
    income = 42000 * torch.exp(0.4 * normal[:, 3])
    distance = (8 * torch.exp(0.7 * normal[:, 4])).clamp(0.1)
    crime = 3 * normal[:, 5] ** 2
    numeric = torch.stack([area, rooms, year, income, distance, crime], dim=1)
    categorical = torch.stack([torch.randint(0, n, (count,), generator=generator) for n in CATEGORIES], dim=1)
    log_price = (
        0.8 * (area / 110).log()
        + 0.5 * (income / 42000).log()
        - 0.15 * (distance / 8).log() * (1 + effects[1][categorical[:, 1]])
        - 0.03 * crime
        + sum(effect[categorical[:, column]] for column, effect in enumerate(effects))
        + 0.05 * torch.randn(count, generator=generator)
    )
    price = 240000 * torch.exp(log_price)
    return numeric, categorical, price


def prepare(config: Config, seed: int):
    """Training and validation rows, standardised by the training rows."""
    numeric, categorical, price = make_table(config.train_rows + config.val_rows, seed)
    target = price.log()
    train = slice(0, config.train_rows)
    numeric = (numeric - numeric[train].mean(dim=0)) / numeric[train].std(dim=0)
    target = (target - target[train].mean()) / target[train].std()
    rows = TensorDataset(numeric, categorical, target)
    train_rows = torch.utils.data.Subset(rows, range(config.train_rows))
    val_rows = torch.utils.data.Subset(rows, range(config.train_rows, len(rows)))
    return train_rows, val_rows


class TabularNet(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(size, min(8, size)) for size in CATEGORIES])
        width = 6 + sum(min(8, size) for size in CATEGORIES)
        layers = []
        for hidden in config.hidden:
            layers += [nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(config.dropout)]
            width = hidden
        self.body = nn.Sequential(*layers)
        self.out = nn.Linear(width, 1)

    def forward(self, numeric, categorical):
        embedded = [layer(categorical[:, column]) for column, layer in enumerate(self.embeddings)]
        x = torch.cat([numeric, *embedded], dim=1)
        return self.out(self.body(x)).squeeze(1)


class Trainer:
    def __init__(self, model, config: Config, train_rows, val_rows, steps: int) -> None:
        self.model = model
        self.config = config
        self.train_loader = DataLoader(train_rows, batch_size=config.batch_size, shuffle=True)
        self.val_loader = DataLoader(val_rows, batch_size=200)
        self.criterion = nn.HuberLoss()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=steps)
        self.steps = steps
        self.losses = []
        self.val_losses = []

    def training_step(self, batch):
        numeric, categorical, target = batch
        prediction = self.model(numeric, categorical)
        loss = self.criterion(prediction, target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.losses.append(loss.item())

    def validation(self):
        self.model.eval()
        total = 0.0
        with torch.no_grad():
            for numeric, categorical, target in self.val_loader:
                prediction = self.model(numeric, categorical)
                total += self.criterion(prediction, target).item()
        self.val_losses.append(total / len(self.val_loader))
        self.model.train()

    def fit(self):
        self.model.train()
        while True:
            for batch in self.train_loader:
                self.training_step(batch)
                if len(self.losses) % self.config.eval_every == 0:
                    self.validation()
                if len(self.losses) >= self.steps:
                    return self.losses


def main(seed: int = 0, steps: int = 300):
    torch.manual_seed(seed)
    config = Config()
    train_rows, val_rows = prepare(config, seed)
    model = TabularNet(config)
    trainer = Trainer(model, config, train_rows, val_rows, steps)
    losses = trainer.fit()
    return losses, model
