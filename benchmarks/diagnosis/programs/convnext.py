"""A ConvNeXt-like network that sorts pictures of shapes: bytes, augmentation, drop path, AdamW, warm-up."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
SHAPES = ("disk", "square", "ring", "cross", "stripes")
SIDE = 16


def draw(shape: int, generator: torch.Generator) -> torch.Tensor:
    """A picture of one shape in a random colour, place and size, as bytes."""
    centre = 6 + 4 * torch.rand(2, generator=generator)
    radius = 3.5 + 3 * torch.rand((), generator=generator)
    rows = torch.arange(SIDE)[:, None] - centre[0]
    columns = torch.arange(SIDE)[None, :] - centre[1]
    distance = (rows**2 + columns**2).sqrt()
    inside = (rows.abs() < radius) & (columns.abs() < radius)
    mask = [
        distance < radius,
        inside,
        (distance < radius) & (distance > radius - 1.8),
        inside & ((rows.abs() < 1.2) | (columns.abs() < 1.2)),
        inside & ((rows + columns).remainder(4) < 2),
    ][shape]
    colour = 90 + 120 * torch.rand(3, 1, 1, generator=generator)
    ground = 100 * torch.rand(3, 1, 1, generator=generator)
    picture = torch.where(mask, colour, ground) + 12 * torch.randn(3, SIDE, SIDE, generator=generator)
    return picture.clamp(0, 255).to(torch.uint8)


class Shapes(Dataset):
    def __init__(self, count: int, seed: int, train: bool) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, len(SHAPES), (count,), generator=generator).tolist()
        self.pictures = [draw(label, generator) for label in self.labels]
        self.train = train

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int):
        picture = self.pictures[index].float() / 255
        picture = (picture - MEAN) / STD
        if self.train and torch.rand(()) < 0.5:
            picture = picture.flip(-1)
        return picture, self.labels[index]


class DropPath(nn.Module):
    """Leaves out the branch of some samples."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x):
        if not self.training or self.rate == 0:
            return x
        keep = 1 - self.rate
        mask = torch.empty(x.shape[0], 1, 1, 1).bernoulli_(keep)
        return x * mask / keep


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of pictures."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    def __init__(self, width: int, drop: float) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.shrink = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(0.1 * torch.ones(width))
        self.drop_path = DropPath(drop)

    def forward(self, x):
        y = self.depthwise(x).permute(0, 2, 3, 1)
        y = self.shrink(F.gelu(self.expand(self.norm(y))))
        y = (self.scale * y).permute(0, 3, 1, 2)
        return x + self.drop_path(y)


class ConvNeXt(nn.Module):
    def __init__(self, widths=(16, 32), depths=(1, 2), classes: int = len(SHAPES)) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 2, stride=2), ChannelNorm(widths[0]))
        self.stage1 = nn.Sequential(*[Block(widths[0], 0.0) for _ in range(depths[0])])
        self.down = nn.Sequential(ChannelNorm(widths[0]), nn.Conv2d(widths[0], widths[1], 2, stride=2))
        self.stage2 = nn.Sequential(*[Block(widths[1], 0.1) for _ in range(depths[1])])
        self.norm = nn.LayerNorm(widths[1])
        self.head = nn.Linear(widths[1], classes)
        self.apply(self.init_weights)

    @staticmethod
    def init_weights(module):
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
            nn.init.zeros_(module.bias)

    def forward(self, pictures):
        x = self.stem(pictures)
        x = self.stage1(x)
        x = self.stage2(self.down(x))
        x = self.norm(x.mean(dim=(2, 3)))
        return self.head(x)


def parameter_groups(model, weight_decay: float):
    decay = [p for p in model.parameters() if p.ndim > 1]
    no_decay = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": decay, "weight_decay": weight_decay}, {"params": no_decay, "weight_decay": 0.0}]


def rate(step: int, warmup: int, total: int) -> float:
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, total - warmup)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


@torch.no_grad()
def evaluate(model, loader, criterion):
    model.eval()
    total_loss, correct, count = 0.0, 0, 0
    for pictures, labels in loader:
        output = model(pictures)
        total_loss += criterion(output, labels).item() * len(labels)
        correct += (output.argmax(dim=1) == labels).sum().item()
        count += len(labels)
    return total_loss / count, correct / count


def train_one_epoch(model, loader, criterion, optimizer, scheduler, losses, steps):
    model.train()
    for pictures, labels in loader:
        output = model(pictures)
        loss = criterion(output, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=5.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
        if len(losses) >= steps:
            return


def main(seed: int = 0, steps: int = 240):
    torch.manual_seed(seed)
    train_loader = DataLoader(Shapes(1024, seed, train=True), batch_size=32, shuffle=True, drop_last=True)
    val_loader = DataLoader(Shapes(128, seed + 9000, train=False), batch_size=64)
    model = ConvNeXt()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
    optimizer = torch.optim.AdamW(parameter_groups(model, weight_decay=0.05), lr=4e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, 20, steps))
    losses = []
    while len(losses) < steps:
        train_one_epoch(model, train_loader, criterion, optimizer, scheduler, losses, steps)
        val_loss, accuracy = evaluate(model, val_loader, criterion)
        print(f"step {len(losses)}: validation loss {val_loss:.3f}, accuracy {accuracy:.2f}")
    return losses, model
