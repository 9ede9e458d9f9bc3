"""A small ResNet-like CNN with BatchNorm on synthetic images: SGD with momentum, one-cycle rate, bf16."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 8
MEAN, STD = 0.45, 0.25


def draw(count: int, generator: torch.Generator):
    """Grey stripes and blobs as bytes, like a folder of PNG files."""
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    grid = torch.linspace(0, 6.28, 16)
    angle = labels.float() / CLASSES * 3.14
    wave = torch.cos(angle)[:, None, None] * grid[None, :, None] + torch.sin(angle)[:, None, None] * grid
    phase = torch.rand(count, 1, 1, generator=generator) * 6.28
    image = 0.45 + 0.3 * torch.sin(2 * wave + phase)
    noise = torch.randn(count, 3, 16, 16, generator=generator) * 0.12
    return ((image[:, None] + noise).clamp(0, 1) * 255).to(torch.uint8), labels


class Images(Dataset):
    def __init__(self, count: int, seed: int, augment: bool = False) -> None:
        self.images, self.labels = draw(count, torch.Generator().manual_seed(seed))
        self.augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int):
        image = self.images[index].float() / 255
        image = (image - MEAN) / STD
        if self.augment and torch.rand(()) < 0.3:
            image = image + 0.1 * torch.randn_like(image)
        label = self.labels[index]
        return image, label


class Block(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.shortcut = nn.Sequential()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride=stride), nn.BatchNorm2d(outside)
            )

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


class ConvNet(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.layer1 = Block(width, width, 1)
        self.layer2 = Block(width, 2 * width, 2)
        self.layer3 = Block(2 * width, 4 * width, 2)
        self.fc = nn.Linear(4 * width, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        x = self.layer3(self.layer2(self.layer1(x)))
        x = F.adaptive_avg_pool2d(x, 1).flatten(1)
        return self.fc(x)


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in loader)
    return right / len(loader.dataset)


def main(seed: int = 0, steps: int = 200):
    torch.manual_seed(seed)
    train_set, val_set = Images(960, seed, augment=True), Images(160, seed + 1000)
    loader = DataLoader(train_set, batch_size=24, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, batch_size=80)
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
    losses, best = [], 0.0
    while len(losses) < steps:
        model.train()
        for images, labels in loader:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(images)
                loss = F.cross_entropy(logits, labels, label_smoothing=0.05)
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
            if len(losses) >= steps:
                break
        best = max(best, accuracy(model, val_loader))
    return losses, model
