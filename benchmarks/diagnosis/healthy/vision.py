"""Convolutional networks and others for pictures."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.diagnosis.healthy.data import batches, fit, pictures
from benchmarks.diagnosis.healthy.registered import healthy


class _Residual(nn.Module):
    def __init__(self, width: int, zero: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width),
        )  # fmt: skip
        if zero:
            nn.init.zeros_(self.body[4].weight)

    def forward(self, x):
        return F.relu(x + self.body(x))


@healthy("ResNet with zero-initialised residual branches, SGD")
def zero_residual(seed=0, steps=160):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(),
        _Residual(12, True), nn.MaxPool2d(2), _Residual(12, True),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    return fit(model, optimizer, pictures(), steps), model


@healthy("plain CNN, biases before BatchNorm, RMSprop")
def plain_cnn(seed=0, steps=160):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4),
    )  # fmt: skip
    return fit(model, torch.optim.RMSprop(model.parameters(), lr=1e-3), pictures(), steps), model


@healthy("pictures from 0 to 1, not standardised, CNN without norm, Adam")
def unit_range(seed=0, steps=180):
    torch.manual_seed(seed)
    x, y = pictures()
    x = ((x + 1.5) / 3).clamp(0, 1) ** 4  # mostly dark, as digits are
    model = nn.Sequential(
        nn.Conv2d(1, 8, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 4),
    )
    return fit(model, torch.optim.Adam(model.parameters(), lr=5e-3), (x, y), steps), model


class _Squeeze(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(width, 4), nn.SiLU(), nn.Linear(4, width), nn.Sigmoid())

    def forward(self, x):
        return x * self.gate(x.mean((2, 3)))[:, :, None, None]


@healthy("depthwise convolutions, squeeze and excitation, SiLU, AdamW")
def mobile(seed=0, steps=180):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.SiLU(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.BatchNorm2d(16), nn.SiLU(), _Squeeze(16),
        nn.Conv2d(16, 24, 1), nn.BatchNorm2d(24), nn.SiLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(96, 4),
    )  # fmt: skip
    return fit(model, torch.optim.AdamW(model.parameters(), lr=3e-3), pictures(), steps), model


class _Patches(nn.Module):
    """A small vision transformer, with LayerScale from 0.1."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, 10, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.attention = nn.ModuleList(nn.MultiheadAttention(width, 4, batch_first=True) for _ in range(2))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width)) for _ in range(2)
        )
        self.scale = nn.Parameter(1e-1 * torch.ones(4, width))
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        for i in range(2):
            y = self.norms[2 * i](x)
            x = x + self.scale[2 * i] * self.attention[i](y, y, y, need_weights=False)[0]
            x = x + self.scale[2 * i + 1] * self.mlps[i](self.norms[2 * i + 1](x))
        return self.head(self.norms[4](x)[:, 0])


@healthy("vision transformer with LayerScale, AdamW, warm-up", falls_to=0.8)
def vit(seed=0, steps=220):
    torch.manual_seed(seed)
    model = _Patches()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.05, total_iters=20)
    return fit(model, optimizer, pictures(), steps, scheduler=warm), model


class _Mixer(nn.Module):
    def __init__(self, tokens: int = 9, width: int = 24) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 4, stride=4)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens))
        self.along = nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width))
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.along(self.norm2(x))
        return self.head(x.mean(1))


@healthy("MLP-Mixer, NAdam")
def mixer(seed=0, steps=200):
    torch.manual_seed(seed)
    model = _Mixer()
    return fit(model, torch.optim.NAdam(model.parameters(), lr=4e-3), pictures(), steps), model


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU())
        self.down2 = nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.ReLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = nn.Conv2d(16, 2, 1)

    def forward(self, x):
        first = self.down1(x)
        return self.out(torch.cat([first, self.up(self.down2(first))], 1))


@healthy("U-Net for rare pixels: class weights and Dice loss, GroupNorm")
def segmentation(seed=0, steps=160):
    torch.manual_seed(seed)
    model = _UNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    weight = torch.tensor([0.2, 1.8])
    image = 0.4 * torch.randn(320, 1, 12, 12)
    mask = torch.zeros(320, 12, 12, dtype=torch.long)
    for i in range(320):
        row, column = torch.randint(0, 9, (2,)).tolist()
        mask[i, row : row + 3, column : column + 3] = 1
    image[:, 0] += 1.2 * mask
    losses = []
    for x, y in batches(image, mask, size=16, steps=steps):
        out = model(x)
        p = out.softmax(1)[:, 1]
        dice = 1 - (2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1)
        loss = F.cross_entropy(out, y, weight=weight) + dice
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@healthy("squeezed CNN with dropout, mixup and label smoothing, last batch of each epoch small")
def mixup(seed=0, steps=200):
    torch.manual_seed(seed)
    x, y = pictures(500)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(3), nn.Dropout2d(0.1),
        nn.Conv2d(12, 12, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(48, 4),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=33, shuffle=True)
    losses = []
    while len(losses) < steps:
        for images, labels in loader:
            share = float(torch.distributions.Beta(0.2, 0.2).sample())
            order = torch.randperm(len(images))
            mixed = share * images + (1 - share) * images[order]
            target = F.one_hot(labels, 4).float()
            target = share * target + (1 - share) * target[order]
            loss = F.cross_entropy(model(mixed), target, label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses[:steps], model
