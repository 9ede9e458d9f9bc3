"""SimCLR on little textures: two views of each picture, float16 with a scaler, a nearest-neighbour test."""

from __future__ import annotations

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

LABELS = 6


def get_args(**overrides):
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.12)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--temperature", type=float, default=0.2)
    parser.add_argument("--clip", type=float, default=5.0)
    args = parser.parse_args([])
    for name, value in overrides.items():
        setattr(args, name, value)
    return args


def make_textures(n):
    """Waves of a colour, a direction and a pitch of their own; the label is the pitch and direction"""
    label = torch.randint(0, LABELS, (n,))
    angle = (label % 3).float() * 1.05 + 0.1 * torch.randn(n)
    pitch = 0.7 + 0.8 * (label // 3).float() + 0.05 * torch.randn(n)
    y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    run = x * angle.cos().view(-1, 1, 1) + y * angle.sin().view(-1, 1, 1)
    wave = torch.sin(pitch.view(-1, 1, 1) * run + 6.28 * torch.rand(n, 1, 1))
    colour = 0.3 + 0.7 * torch.rand(n, 3, 1, 1)
    return 0.5 + 0.4 * colour * wave.unsqueeze(1) + 0.02 * torch.randn(n, 3, 16, 16), label


def augment(images):
    """A random crop, light and noise for each picture of a batch"""
    n = len(images)
    dy, dx = torch.randint(0, 5, (2,)).tolist()
    images = images[:, :, dy : dy + 12, dx : dx + 12]
    images = images * (0.7 + 0.6 * torch.rand(n, 1, 1, 1)) + 0.1 * torch.randn(n, 3, 1, 1)
    images = images + 0.05 * torch.randn_like(images)
    return (images - 0.5) / 0.25


class Encoder(nn.Module):
    def __init__(self, width=16, features=48):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.stage1 = self.stage(width, 2 * width)
        self.stage2 = self.stage(2 * width, features)

    def stage(self, inner, outer):
        return nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(outer),
            nn.ReLU(),
        )

    def forward(self, x):
        x = self.stage2(self.stage1(self.stem(x)))
        return x.mean(dim=(2, 3))


class SimCLR(nn.Module):
    def __init__(self, features=48, out=24):
        super().__init__()
        self.encoder = Encoder(features=features)
        self.projector = nn.Sequential(
            nn.Linear(features, features), nn.BatchNorm1d(features), nn.ReLU(), nn.Linear(features, out)
        )

    def forward(self, x):
        return self.projector(self.encoder(x))


def nt_xent(z1, z2, temperature):
    z = F.normalize(torch.cat([z1, z2]).float(), dim=1)
    sim = z @ z.t() / temperature
    sim = sim.masked_fill(torch.eye(len(z), dtype=torch.bool), float("-inf"))
    n = len(z1)
    target = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return F.cross_entropy(sim, target)


def train_step(model, images, optimizer, scaler, scheduler, args):
    view1, view2 = augment(images), augment(images)
    with torch.autocast("cpu", dtype=torch.float16):
        z1, z2 = model(torch.cat([view1, view2])).chunk(2)
    loss = nt_xent(z1, z2, args.temperature)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), args.clip)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    return loss.item()


@torch.no_grad()
def knn_accuracy(model, bank, bank_labels, queries, labels):
    model.eval()
    keys = F.normalize(model.encoder((bank[:, :, 2:14, 2:14] - 0.5) / 0.25), dim=1)
    query = F.normalize(model.encoder((queries[:, :, 2:14, 2:14] - 0.5) / 0.25), dim=1)
    nearest = (query @ keys.t()).topk(5, dim=1).indices
    guess = bank_labels[nearest].mode(dim=1).values
    model.train()
    return (guess == labels).float().mean().item()


def main(seed: int = 0, steps: int = 200):
    torch.manual_seed(seed)
    args = get_args()
    images, labels = make_textures(640)
    test_images, test_labels = make_textures(120)
    model = SimCLR()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.lr, momentum=args.momentum, weight_decay=args.weight_decay
    )
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=args.lr, total_steps=steps + 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    losses = []
    model.train()
    while len(losses) < steps:
        for rows in torch.randperm(len(images)).split(args.batch_size):
            losses.append(train_step(model, images[rows], optimizer, scaler, scheduler, args))
            if len(losses) >= steps:
                break
        accuracy = knn_accuracy(model, images, labels, test_images, test_labels)
        print(f"{len(losses):4d}  loss {losses[-1]:.3f}  knn {accuracy:.3f}")
    return losses, model
