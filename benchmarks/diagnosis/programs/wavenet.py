"""A WaveNet of dilated causal convolutions: float16 with a scaler, and an average of the weights."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

LEVELS = 32
DILATIONS = (1, 2, 4, 8, 16)
FIELD = 8  # samples at the beginning that are not judged: too little was heard
IGNORED = -100


def companded(wave):
    """The mu-law code of samples from -1 to 1."""
    mu = LEVELS - 1
    code = wave.sign() * torch.log1p(mu * wave.abs()) / math.log1p(mu)
    return ((code + 1) / 2 * mu).round().long()


class Tones(Dataset):
    """Two sine waves that go on, with a little noise."""

    def __init__(self, count: int, length: int = 64) -> None:
        time = torch.arange(length + 1)
        pitch = 0.15 + 0.5 * torch.rand(count, 2, 1)
        phase = 2 * math.pi * torch.rand(count, 2, 1)
        waves = torch.sin(pitch * time + phase) * torch.tensor([0.55, 0.3]).view(1, 2, 1)
        self.codes = companded((waves.sum(dim=1) + 0.01 * torch.randn(count, length + 1)).clamp(-1, 1))

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, index):
        code = self.codes[index]
        inputs, targets = code[:-1], code[1:].clone()
        targets[:FIELD] = IGNORED
        return inputs, targets


class Gated(nn.Module):
    """A causal convolution with a gate, a residual and a skip."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.reach = dilation
        self.conv = nn.Conv1d(width, 2 * width, kernel_size=2, dilation=dilation)
        self.mix = nn.Conv1d(width, 2 * width, kernel_size=1)
        self.tanh, self.sigmoid = nn.Tanh(), nn.Sigmoid()

    def forward(self, x):
        value, gate = self.conv(F.pad(x, (self.reach, 0))).chunk(2, dim=1)
        residual, skip = self.mix(self.tanh(value) * self.sigmoid(gate)).chunk(2, dim=1)
        return x + residual, skip


class WaveNet(nn.Module):
    def __init__(self, width: int = 32, dropout: float = 0.05) -> None:
        super().__init__()
        self.embed = nn.Embedding(LEVELS, width)
        self.layers = nn.ModuleList([Gated(width, dilation) for dilation in DILATIONS])
        self.post = nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Dropout(dropout))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, LEVELS, bias=False)
        nn.init.normal_(self.embed.weight, std=0.1)
        self.head.weight = self.embed.weight

    def forward(self, codes):
        x = self.embed(codes).transpose(1, 2)
        total = 0
        for layer in self.layers:
            x, skip = layer(x)
            total = total + skip
        return self.head(self.norm(self.post(total).transpose(1, 2)))


@torch.no_grad()
def follow(average, model, decay=0.97):
    for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
        slow.lerp_(fast, 1 - decay)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    total = 0.0
    for inputs, targets in loader:
        logits = model(inputs)
        total += F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED).item()
    return total / len(loader)


def main(seed: int = 0, steps: int = 220):
    torch.manual_seed(seed)
    train_loader = DataLoader(Tones(352), batch_size=8, shuffle=True)
    val_loader = DataLoader(Tones(64), batch_size=32)
    model = WaveNet()
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3, betas=(0.9, 0.98))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    losses: list[float] = []
    while len(losses) < steps:
        model.train()
        for inputs, targets in train_loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                logits = model(inputs)
                loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            follow(average, model)
            losses.append(loss.item())
            if len(losses) >= steps:
                break
        evaluate(average, val_loader)
        scheduler.step()
    return losses, model
