"""A vision transformer for striped pictures: a Dataset with transforms, AdamW in groups, a warm-up."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

CLASSES = 8
MEAN, STD = (0.38, 0.36, 0.33), (0.21, 0.20, 0.19)


class Compose:
    def __init__(self, *transforms) -> None:
        self.transforms = transforms

    def __call__(self, picture):
        for transform in self.transforms:
            picture = transform(picture)
        return picture


class Normalize:
    def __init__(self, mean, std) -> None:
        self.mean = torch.tensor(mean).view(3, 1, 1)
        self.std = torch.tensor(std).view(3, 1, 1)

    def __call__(self, picture):
        return (picture - self.mean) / self.std


class Jitter:
    """A little more or less light."""

    def __call__(self, picture):
        return picture * (0.9 + 0.2 * torch.rand(1))


class Stripes(Dataset):
    """Stripes in one quarter of a noisy picture. The class is the quarter and the direction."""

    def __init__(self, count: int, transform=None) -> None:
        self.labels = torch.randint(0, CLASSES, (count,))
        self.pictures = torch.stack([self.draw(label) for label in self.labels.tolist()])
        self.transform = transform

    @staticmethod
    def draw(label: int) -> torch.Tensor:
        canvas = 80 + 40 * torch.randn(3, 16, 16)
        quarter, upright = label // 2, label % 2
        stripes = (torch.arange(8) % 4 < 2).float().expand(8, 8)
        top, left = 8 * (quarter // 2), 8 * (quarter % 2)
        canvas[:, top : top + 8, left : left + 8] += 90 * (stripes if upright else stripes.T)
        return canvas.clamp(0, 255).to(torch.uint8)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index):
        picture = self.pictures[index].float() / 255
        if self.transform is not None:
            picture = self.transform(picture)
        return picture, self.labels[index]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        rows, tokens, width = x.shape
        qkv = self.qkv(x).view(rows, tokens, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) / math.sqrt(width // self.heads)
        x = scores.softmax(dim=-1) @ value
        return self.out(x.transpose(1, 2).reshape(rows, tokens, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class ViT(nn.Module):
    def __init__(self, width: int = 48, heads: int = 4, depth: int = 3, dropout: float = 0.1) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, kernel_size=4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(0.2 * torch.randn(1, 17, width))
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)
        self.apply(self.reset)
        nn.init.trunc_normal_(self.head.weight, std=0.02)

    @staticmethod
    def reset(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)
        x = x + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def groups(model, decay):
    """Weight decay for matrices only."""
    matrices = [each for each in model.parameters() if each.ndim >= 2]
    others = [each for each in model.parameters() if each.ndim < 2]
    return [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]


def rate(step, warm, steps):
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))


@torch.no_grad()
def validate(model, loader):
    model.eval()
    right, seen = 0, 0
    for pictures, labels in loader:
        scores = model(pictures)
        right += (scores.argmax(dim=1) == labels).sum().item()
        seen += len(labels)
    model.train()
    return right / seen


def main(seed: int = 0, steps: int = 220):
    torch.manual_seed(seed)
    data = Stripes(1760, transform=Compose(Jitter(), Normalize(MEAN, STD)))
    order = torch.randperm(len(data)).tolist()
    train_rows, val_rows = order[:1440], order[1440:]
    train_loader = DataLoader(Subset(data, train_rows), batch_size=32, shuffle=True)
    val_loader = DataLoader(Subset(data, val_rows), batch_size=80)
    model = ViT()
    optimizer = torch.optim.AdamW(groups(model, decay=0.05), lr=1.5e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, 20, steps))
    criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
    losses: list[float] = []
    while len(losses) < steps:
        for pictures, labels in train_loader:
            scores = model(pictures)
            loss = criterion(scores, labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
            if len(losses) >= steps:
                break
        validate(model, val_loader)
    return losses, model
