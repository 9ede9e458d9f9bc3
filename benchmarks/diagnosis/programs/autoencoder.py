"""An autoencoder of small pictures: float16 autocast with a gradient scaler, two micro-batches a step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 10
ACCUMULATE = 2


class Rectangles(Dataset):
    """A bright rectangle on a dark ground, with some noise; values from 0 to 1."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        rows = torch.arange(SIDE)
        corner = torch.randint(0, SIDE - 3, (count, 2), generator=generator)
        size = torch.randint(2, 6, (count, 2), generator=generator)
        inside = [
            (rows >= corner[:, i, None]) & (rows < corner[:, i, None] + size[:, i, None]) for i in (0, 1)
        ]
        picture = (inside[0][:, :, None] & inside[1][:, None, :]).float() * 0.8 + 0.1
        noise = 0.05 * torch.randn(count, SIDE, SIDE, generator=generator)
        self.pictures = (picture + noise).clamp(0, 1)

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int):
        return self.pictures[index].flatten()


class Autoencoder(nn.Module):
    def __init__(self, code: int = 12, hidden: int = 48) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(SIDE * SIDE, hidden), nn.ReLU(), nn.Linear(hidden, code))
        self.decoder = nn.Sequential(nn.Linear(code, hidden), nn.ReLU(), nn.Linear(hidden, SIDE * SIDE))

    def forward(self, x):
        code = self.encoder(x)
        return self.decoder(code)


def reconstruction_loss(logits, target):
    return F.binary_cross_entropy_with_logits(logits.float(), target)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    values = [reconstruction_loss(model(pictures), pictures).item() for pictures in loader]
    model.train()
    return sum(values) / len(values)


def main(seed: int = 0, steps: int = 220):
    torch.manual_seed(seed)
    loader = DataLoader(Rectangles(960, seed), batch_size=16, shuffle=True, drop_last=True)
    val_loader = DataLoader(Rectangles(128, seed + 99), batch_size=64)
    model = Autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    losses, total, micro = [], 0.0, 0
    while len(losses) < steps:
        for pictures in loader:
            with torch.autocast("cpu", dtype=torch.float16):
                out = model(pictures)
                loss = reconstruction_loss(out, pictures) / ACCUMULATE
            scaler.scale(loss).backward()
            total, micro = total + loss.item(), micro + 1
            if micro % ACCUMULATE:
                continue
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(total)
            total = 0.0
            if len(losses) >= steps:
                break
        evaluate(model, val_loader)
    return losses, model
