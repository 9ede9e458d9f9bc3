"""A denoising diffusion model: a U-Net that knows the time, an average of its weights, a warm-up."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TIMES = 100
SIZE = 12


def cosine_schedule(times: int, offset: float = 0.008) -> Tensor:
    """The share of the picture that is left at each time (Nichol and Dhariwal)."""
    t = torch.linspace(0, 1, times + 1)
    level = torch.cos((t + offset) / (1 + offset) * math.pi / 2) ** 2
    betas = (1 - level[1:] / level[:-1]).clamp(max=0.999)
    return torch.cumprod(1 - betas, dim=0)


def make_blobs(count: int) -> Tensor:
    """Pictures in the range -1 to 1 with one round blob each."""
    axis = torch.linspace(-1, 1, SIZE)
    centre = 1.2 * torch.rand(count, 2, 1, 1) - 0.6
    radius = 0.25 + 0.2 * torch.rand(count, 1, 1)
    distance = (axis[:, None] - centre[:, 0]) ** 2 + (axis - centre[:, 1]) ** 2
    return (2 * torch.exp(-distance / radius**2) - 1).unsqueeze(1)


class TimeEmbedding(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))

    def forward(self, t: Tensor) -> Tensor:
        half = self.width // 2
        pitches = torch.exp(-math.log(1000) * torch.arange(half) / half)
        angles = t[:, None].float() * pitches
        return self.mlp(torch.cat([angles.sin(), angles.cos()], dim=-1))


class ResBlock(nn.Module):
    def __init__(self, inner: int, outer: int, width: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(4, inner)
        self.conv1 = nn.Conv2d(inner, outer, 3, padding=1)
        self.time = nn.Linear(width, outer)
        self.norm2 = nn.GroupNorm(4, outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1)
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(emb))[:, :, None, None]
        h = self.conv2(F.silu(self.norm2(h)))
        return h + self.skip(x)


class Denoiser(nn.Module):
    def __init__(self, base: int = 16, width: int = 32) -> None:
        super().__init__()
        self.embed = TimeEmbedding(width)
        self.first = nn.Conv2d(1, base, 3, padding=1)
        self.down1 = ResBlock(base, base, width)
        self.down2 = ResBlock(base, 2 * base, width)
        self.middle = ResBlock(2 * base, 2 * base, width)
        self.up2 = ResBlock(4 * base, base, width)
        self.up1 = ResBlock(2 * base, base, width)
        self.norm = nn.GroupNorm(4, base)
        self.last = nn.Conv2d(base, 1, 3, padding=1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        emb = self.embed(t)
        one = self.down1(self.first(x), emb)
        two = self.down2(F.avg_pool2d(one, 2), emb)
        x = self.middle(two, emb)
        x = self.up2(torch.cat([x, two], dim=1), emb)
        x = F.interpolate(x, scale_factor=2, mode="nearest")
        x = self.up1(torch.cat([x, one], dim=1), emb)
        return self.last(F.silu(self.norm(x)))


class EMA:
    """A running average of the weights, for sampling."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for average, current in zip(self.model.parameters(), model.parameters(), strict=True):
            average.lerp_(current, 1 - self.decay)


def q_sample(x0: Tensor, t: Tensor, noise: Tensor, alpha_bar: Tensor) -> Tensor:
    kept = alpha_bar[t][:, None, None, None]
    return kept.sqrt() * x0 + (1 - kept).sqrt() * noise


def p_losses(model: nn.Module, x0: Tensor, alpha_bar: Tensor) -> Tensor:
    t = torch.randint(0, TIMES, (len(x0),))
    noise = torch.randn_like(x0)
    noisy = q_sample(x0, t, noise, alpha_bar)
    predicted = model(noisy, t)
    return F.mse_loss(predicted, noise)


@torch.no_grad()
def sample(model: nn.Module, count: int, alpha_bar: Tensor, stride: int = 10) -> Tensor:
    """DDIM, without noise of its own."""
    x = torch.randn(count, 1, SIZE, SIZE)
    times = list(range(TIMES - 1, -1, -stride))
    for now, after in zip(times, [*times[1:], None], strict=True):
        noise = model(x, torch.full((count,), now))
        clean = ((x - (1 - alpha_bar[now]).sqrt() * noise) / alpha_bar[now].sqrt()).clamp(-1, 1)
        kept = alpha_bar[after] if after is not None else torch.tensor(1.0)
        x = kept.sqrt() * clean + (1 - kept).sqrt() * noise
    return x


def batches(pictures: Tensor, size: int):
    while True:
        order = torch.randperm(len(pictures))
        for rows in order.split(size):
            yield pictures[rows]


def main(seed: int = 0, steps: int = 220):
    torch.manual_seed(seed)
    pictures = make_blobs(1024)
    alpha_bar = cosine_schedule(TIMES)
    model = Denoiser()
    ema = EMA(model, decay=0.98)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.99))
    warmup = 20
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
    losses = []
    for x0 in batches(pictures, 32):
        loss = p_losses(model, x0, alpha_bar)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        ema.update(model)
        losses.append(loss.item())
        if len(losses) % 100 == 0:
            print(len(losses), losses[-1], sample(ema.model, 4, alpha_bar).mean().item())
        if len(losses) >= steps:
            break
    return losses, (model, ema.model)
