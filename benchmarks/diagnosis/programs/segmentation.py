"""A small U-Net for segmentation: a dict of settings, bfloat16, accumulation, cross-entropy and dice."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

CFG = {
    "classes": 3,
    "ignore": 255,
    "batch": 8,
    "accumulate": 2,
    "lr": 0.08,
    "momentum": 0.9,
    "power": 0.9,
    "decay": 1e-4,
}


class Shapes(Dataset):
    """Discs and squares on a noisy ground. The edge of each shape belongs to no class."""

    def __init__(self, n, size=24):
        self.images, self.masks = [], []
        grid_y, grid_x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        for i in range(n):
            image = 60 + 25 * torch.randn(3, size, size)
            mask = torch.zeros(size, size, dtype=torch.long)
            for kind in (1, 2) if i % 2 else (2, 1):
                cy, cx = torch.randint(5, size - 5, (2,)).tolist()
                r = int(torch.randint(3, 6, (1,)))
                dy, dx = grid_y - cy, grid_x - cx
                disc = (dy**2 + dx**2).float().sqrt()
                dist = disc if kind == 1 else torch.maximum(dy.abs(), dx.abs()).float()
                inside, edge = dist < r, (dist >= r) & (dist < r + 0.8)
                image[:, inside] += torch.tensor([[90.0], [60.0], [45.0 if kind == 1 else 80.0]])
                mask[edge] = CFG["ignore"]
                mask[inside] = kind
            self.images.append(image.clamp(0, 255).byte())
            self.masks.append(mask)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = self.images[i].float() / 255.0
        image = (image - 0.29) / 0.16
        if torch.rand(()) < 0.5:
            return image.flip(-1), self.masks[i].flip(-1)
        return image, self.masks[i]


class DoubleConv(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(x)), inplace=True)


class UNet(nn.Module):
    def __init__(self, classes, base=12):
        super().__init__()
        self.enc1 = DoubleConv(3, base)
        self.enc2 = DoubleConv(base, base * 2)
        self.mid = DoubleConv(base * 2, base * 4)
        self.up2 = nn.ConvTranspose2d(base * 4, base * 2, 2, stride=2)
        self.dec2 = DoubleConv(base * 4, base * 2)
        self.up1 = nn.ConvTranspose2d(base * 2, base, 2, stride=2)
        self.dec1 = DoubleConv(base * 2, base)
        self.head = nn.Conv2d(base, classes, 1)

    def forward(self, x):
        skip1 = self.enc1(x)
        skip2 = self.enc2(F.max_pool2d(skip1, 2))
        x = self.mid(F.max_pool2d(skip2, 2))
        x = self.dec2(torch.cat([self.up2(x), skip2], dim=1))
        x = self.dec1(torch.cat([self.up1(x), skip1], dim=1))
        return self.head(x)


def dice_loss(logits, masks, eps=1.0):
    valid = (masks != CFG["ignore"]).unsqueeze(1)
    probs = logits.softmax(dim=1) * valid
    onehot = F.one_hot(masks.clamp(max=CFG["classes"] - 1), CFG["classes"]).permute(0, 3, 1, 2) * valid
    inter = (probs * onehot).sum(dim=(0, 2, 3))
    union = probs.sum(dim=(0, 2, 3)) + onehot.sum(dim=(0, 2, 3))
    return 1 - ((2 * inter + eps) / (union + eps)).mean()


def compute_loss(logits, masks):
    logits = logits.float()
    ce = F.cross_entropy(logits, masks, ignore_index=CFG["ignore"])
    return ce + 0.5 * dice_loss(logits, masks)


def train_one_epoch(model, loader, optimizer, scheduler, log, steps):
    model.train()
    running = 0.0
    optimizer.zero_grad()
    for i, (images, masks) in enumerate(loader):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(images)
        loss = compute_loss(logits, masks)
        (loss / CFG["accumulate"]).backward()
        running += loss.item()
        log.append(loss.item())
        if (i + 1) % CFG["accumulate"] == 0:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        if len(log) >= steps:
            break
    return running / (i + 1)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    total, inter, union = 0.0, torch.zeros(CFG["classes"]), torch.zeros(CFG["classes"])
    for images, masks in loader:
        logits = model(images)
        total += compute_loss(logits, masks).item()
        pred, valid = logits.argmax(dim=1), masks != CFG["ignore"]
        for c in range(CFG["classes"]):
            inter[c] += ((pred == c) & (masks == c)).sum()
            union[c] += (((pred == c) | (masks == c)) & valid).sum()
    return total / len(loader), (inter / union.clamp(min=1)).mean().item()


def main(seed: int = 0, steps: int = 240):
    torch.manual_seed(seed)
    train_set, val_set = Shapes(240), Shapes(48)
    train_loader = DataLoader(train_set, batch_size=CFG["batch"], shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, batch_size=16)
    model = UNet(CFG["classes"])
    optimizer = torch.optim.SGD(
        model.parameters(), lr=CFG["lr"], momentum=CFG["momentum"], weight_decay=CFG["decay"], nesterov=True
    )
    updates = steps // CFG["accumulate"] + 1
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda it: max(0.0, 1 - it / updates) ** CFG["power"]
    )
    log = []
    while len(log) < steps:
        train_loss = train_one_epoch(model, train_loader, optimizer, scheduler, log, steps)
        val_loss, miou = evaluate(model, val_loader)
        print(f"step {len(log)}: train {train_loss:.3f} val {val_loss:.3f} mIoU {miou:.3f}")
    return log, model
