"""Held-out trainings of pictures and rows: unusual networks, losses and ways to train that are right."""

from __future__ import annotations

import copy
import itertools
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize, prune
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.diagnosis.healthy.registered import healthy

fresh = partial(healthy, fresh=True)


def rings(count: int, seed: int, classes: int = 6, features: int = 20) -> TensorDataset:
    """Rows around curved arms, one arm for each class, seen through a fixed random map."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (count,), generator=generator)
    far = 0.5 + torch.rand(count, generator=generator)
    turn = 6.283 * labels / classes + 1.5 * far + 0.15 * torch.randn(count, generator=generator)
    plane = torch.stack([far * turn.cos(), far * turn.sin()], dim=1)
    lift = torch.randn(2, features, generator=torch.Generator().manual_seed(11))
    rows = plane @ lift + 0.1 * torch.randn(count, features, generator=generator)
    return TensorDataset(rows, labels)


def crosses(count: int, seed: int, side: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy pictures of a cross or a box, the class of each and where its pixels are."""
    generator = torch.Generator().manual_seed(seed)
    masks = torch.zeros(count, 1, side, side)
    labels = torch.randint(0, 4, (count,), generator=generator)
    places = torch.randint(0, side - 6, (count, 2), generator=generator).tolist()
    for mask, label, (top, left) in zip(masks, labels.tolist(), places, strict=True):
        if label == 0:
            mask[0, top : top + 6, left : left + 6] = 1
        if label in (1, 3):
            mask[0, top + 2 : top + 4, left : left + 6] = 1
        if label in (2, 3):
            mask[0, top : top + 6, left + 2 : left + 4] = 1
    return masks + 0.3 * torch.randn(masks.shape, generator=generator), labels


def batches(data, size: int):
    """Batch after batch, epoch after epoch."""
    loader = DataLoader(data, batch_size=size, shuffle=True, drop_last=True)
    return itertools.chain.from_iterable(itertools.repeat(loader))


def small_cnn(classes: int = 4, norm: bool = True) -> nn.Sequential:
    middle = nn.BatchNorm2d(16) if norm else nn.Identity()
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2, padding=2), middle, nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(2), nn.Flatten(),
        nn.Linear(128, classes),
    )  # fmt: skip


@fresh("U-Net with transposed convolutions that finds the pixels: Dice plus cross-entropy, GroupNorm")
def unet(seed=0, steps=200):
    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = self.block(1, 12)
            self.two = self.block(12, 24)
            self.up = nn.ConvTranspose2d(24, 12, 2, stride=2)
            self.last = self.block(24, 12)
            self.out = nn.Conv2d(12, 1, 1)

        @staticmethod
        def block(inside: int, outside: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv2d(inside, outside, 3, padding=1, bias=False), nn.GroupNorm(4, outside), nn.SiLU()
            )

        def forward(self, x):
            fine = self.one(x)
            coarse = self.two(F.avg_pool2d(fine, 2))
            return self.out(self.last(torch.cat([fine, self.up(coarse)], dim=1)))

    torch.manual_seed(seed)
    pictures, _ = crosses(640, seed)
    wanted = (pictures > 0.5).float()
    stream = batches(TensorDataset(pictures + 0.2 * torch.randn_like(pictures), wanted), 16)
    model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    losses = []
    for noisy, mask in itertools.islice(stream, steps):
        logits = model(noisy)
        share = logits.sigmoid()
        overlap = (2 * (share * mask).sum(dim=(1, 2, 3)) + 1) / (share + mask).sum(dim=(1, 2, 3)).add(1)
        loss = F.binary_cross_entropy_with_logits(logits, mask) + (1 - overlap).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@fresh("mixup of pictures and of soft labels: each picture twice in a batch, a loss that stays high")
def mixup(seed=0, steps=220):
    torch.manual_seed(seed)
    stream = batches(TensorDataset(*crosses(960, seed)), 32)
    model = small_cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    share = torch.distributions.Beta(0.3, 0.3)
    losses = []
    for pictures, labels in itertools.islice(stream, steps):
        weight, order = share.sample(), torch.randperm(len(labels))
        soft = F.one_hot(labels, 4).float()
        mixed = weight * pictures + (1 - weight) * pictures[order]
        loss = F.cross_entropy(model(mixed), weight * soft + (1 - weight) * soft[order])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses, model


@fresh("additive angular margin with a scale of 20: the loss starts far above chance")
def arcface(seed=0, steps=220):
    class Margin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(20, 64), nn.PReLU(), nn.Linear(64, 64), nn.PReLU())
            self.embed = nn.Linear(64, 16, bias=False)
            self.centres = nn.Parameter(torch.randn(6, 16))

        def forward(self, rows, labels):
            place = F.normalize(self.embed(self.body(rows)), dim=1)
            cosine = (place @ F.normalize(self.centres, dim=1).T).clamp(-1 + 1e-5, 1 - 1e-5)
            harder = torch.cos(torch.acos(cosine) + 0.2)
            return 20 * torch.where(F.one_hot(labels, 6).bool(), harder, cosine)

    torch.manual_seed(seed)
    model = Margin()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for rows, labels in itertools.islice(batches(rings(1200, seed), 40), steps):
        loss = F.cross_entropy(model(rows, labels), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@fresh("hypernetwork: another network writes the weights of a template whose own never learn")
def hypernetwork(seed=0, steps=240):
    torch.manual_seed(seed)
    template = nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 1)).requires_grad_(False)
    shapes = {name: value.shape for name, value in template.named_parameters()}
    sizes = [shape.numel() for shape in shapes.values()]
    writer = nn.Sequential(nn.Linear(2, 48), nn.GELU(), nn.Linear(48, sum(sizes)))
    optimizer = torch.optim.Adam(writer.parameters(), lr=4e-3)
    losses = []
    for _ in range(steps):
        tasks = torch.rand(8, 2) + 0.5
        flat = writer(tasks).split(sizes, dim=1)
        weights = {
            name: part.view(8, *shape) for part, (name, shape) in zip(flat, shapes.items(), strict=True)
        }
        x = 4 * torch.rand(8, 24, 1) - 2
        out = torch.func.vmap(partial(torch.func.functional_call, template))(weights, (x,))
        loss = F.mse_loss(out, tasks[:, :1, None] * torch.sin(2 * tasks[:, 1:, None] * x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, (writer, template)


@fresh("weights of one bit by a straight-through gradient, latent weights clipped to one after each step")
def binary(seed=0, steps=220):
    class Sign(nn.Module):
        def forward(self, weight):
            scale = weight.abs().mean()
            return weight + (scale * weight.sign() - weight).detach()

    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(20, 96), nn.BatchNorm1d(96), nn.Hardtanh(), nn.Linear(96, 96), nn.BatchNorm1d(96),
        nn.Hardtanh(), nn.Linear(96, 6),
    )  # fmt: skip
    parametrize.register_parametrization(model[3], "weight", Sign())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for rows, labels in itertools.islice(batches(rings(1200, seed), 40), steps):
        loss = F.cross_entropy(model(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model[3].parametrizations.weight.original.clamp_(-1, 1)
        losses.append(loss.item())
    return losses, model


@fresh("self-training: after 100 steps the network labels new rows itself, if it is sure")
def self_training(seed=0, steps=240):
    torch.manual_seed(seed)
    few, many = batches(rings(240, seed), 24), batches(rings(1200, seed + 1), 48)
    model = nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    losses = []
    for step in range(steps):
        rows, labels = next(few)
        if step >= 100:
            others, _ = next(many)
            model.eval()
            with torch.no_grad():
                sure, guess = model(others).softmax(dim=1).max(dim=1)
            model.train()
            rows = torch.cat([rows, others[sure > 0.8]])
            labels = torch.cat([labels, guess[sure > 0.8]])
        loss = F.cross_entropy(model(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@fresh("the batch grows from 8 rows to 128 instead of a falling rate, SGD with momentum")
def growing_batch(seed=0, steps=240):
    torch.manual_seed(seed)
    data = rings(2048, seed)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for size in (8, 32, 128):
        for rows, labels in itertools.islice(batches(data, size), steps // 3):
            loss = F.cross_entropy(model(rows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, model


@fresh("pruned at the start and once more in the middle: most weights are zero and stay so")
def pruned(seed=0, steps=220):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 6))
    for layer in (model[0], model[2]):
        prune.random_unstructured(layer, "weight", amount=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    losses = []
    for step, (rows, labels) in enumerate(itertools.islice(batches(rings(1200, seed), 32), steps)):
        if step == steps // 2:
            prune.l1_unstructured(model[2], "weight", amount=0.6)
        loss = F.cross_entropy(model(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@fresh("Barlow Twins: a sum over the correlations of two views, BatchNorm without weights")
def barlow(seed=0, steps=200):
    torch.manual_seed(seed)
    pictures, labels = crosses(960, seed)
    body = nn.Sequential(small_cnn(32), nn.ReLU(), nn.Linear(32, 32), nn.BatchNorm1d(32, affine=False))
    optimizer = torch.optim.AdamW(body.parameters(), lr=3e-3, weight_decay=1e-4)
    losses = []
    for shown, _ in itertools.islice(batches(TensorDataset(pictures, labels), 64), steps):
        one, two = (body(shown * (0.8 + 0.4 * torch.rand(64, 1, 1, 1))) for _ in range(2))
        matrix = one.T @ two / 64
        apart = matrix.pow(2).sum() - matrix.diagonal().pow(2).sum()
        loss = (1 - matrix.diagonal()).pow(2).sum() + 0.02 * apart
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, body


@fresh("the loss is a sum over all pixels of a batch of one size, SGD with a rate of 2e-5")
def summed_pixels(seed=0, steps=200):
    torch.manual_seed(seed)
    pictures, labels = crosses(800, seed)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(256, 32), nn.ELU(), nn.Linear(32, 256), nn.Unflatten(1, (1, 16, 16))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=2e-5, momentum=0.9)
    losses = []
    for shown, _ in itertools.islice(batches(TensorDataset(pictures, labels), 40), steps):
        loss = F.mse_loss(model(shown), (shown > 0.5).float() * 4, reduction="sum")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@fresh("random convolutions stay as they are: only BatchNorm and the last layer learn")
def norms_only(seed=0, steps=220):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 5, stride=2, padding=2, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 48, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(48), nn.ReLU(),
        nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(192, 4),
    )  # fmt: skip
    for module in model:
        if isinstance(module, nn.Conv2d):
            module.requires_grad_(False)
    learned = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(learned, lr=0.01, momentum=0.9)
    losses = []
    for pictures, labels in itertools.islice(batches(TensorDataset(*crosses(960, seed)), 32), steps):
        loss = F.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@fresh("three tasks one after the other with a memory of old rows: the loss jumps with each new task", 0.8)
def continual(seed=0, steps=240):
    torch.manual_seed(seed)
    rows, labels = rings(1800, seed).tensors
    model = nn.Sequential(nn.Linear(20, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 6))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    old: list[torch.Tensor] = []
    losses = []
    for task in range(3):
        mine = torch.nonzero(labels // 2 == task).flatten()
        for _ in range(steps // 3):
            chosen = mine[torch.randint(0, len(mine), (24,))]
            if old:
                memory = torch.cat(old)
                chosen = torch.cat([chosen, memory[torch.randint(0, len(memory), (24,))]])
            loss = F.cross_entropy(model(rows[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        old.append(mine[:100])
    return losses, model


@fresh("adversarial training: rows are moved along the sign of their gradient, made in eval mode")
def adversarial(seed=0, steps=200):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(20, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Dropout(0.1), nn.Linear(96, 64), nn.ReLU(),
        nn.Linear(64, 6),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for rows, labels in itertools.islice(batches(rings(1200, seed), 40), steps):
        model.eval()
        moved = rows.clone().requires_grad_()
        F.cross_entropy(model(moved), labels).backward()
        attacked = (rows + 0.05 * moved.grad.sign()).detach()
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(attacked), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@fresh("an input is learned, the network is not: the picture that a trained network finds most typical", 0.6)
def dreamt(seed=0, steps=200):
    torch.manual_seed(seed)
    model = small_cnn(norm=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    stream = batches(TensorDataset(*crosses(640, seed)), 32)
    losses = []
    for pictures, labels in itertools.islice(stream, steps // 2):
        loss = F.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval().requires_grad_(False)
    frozen = copy.deepcopy(model)
    picture = nn.Parameter(0.1 * torch.randn(4, 1, 16, 16))
    optimizer = torch.optim.SGD([picture], lr=0.5, momentum=0.9)
    for _ in range(steps // 2):
        shifted = torch.roll(picture, tuple(torch.randint(-1, 2, (2,)).tolist()), (2, 3))
        loss = F.cross_entropy(frozen(shifted), torch.arange(4)) + 1e-3 * picture.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model
