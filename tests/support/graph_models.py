"""Small models of the usual kinds, whose graphs torch.fx can trace, too."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GptBlock(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.out, self.drop = nn.Linear(size, 3 * size), nn.Linear(size, size), nn.Dropout(0.1)
        self.mlp = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.ln1(x)).chunk(3, dim=-1)
        x = x + self.drop(self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
        return x + self.mlp(self.ln2(x))


class Gpt(nn.Module):
    def __init__(self, size: int = 8, blocks: int = 2) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(11, size), nn.Embedding(6, size)
        self.blocks = nn.ModuleList(GptBlock(size) for _ in range(blocks))
        self.ln_f, self.head = nn.LayerNorm(size), nn.Linear(size, 11, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))


class ResidualBlock(nn.Module):
    def __init__(self, given: int, size: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(given, size, 3, padding=1, bias=False), nn.BatchNorm2d(size)
        self.conv2, self.bn2 = nn.Conv2d(size, size, 3, padding=1, bias=False), nn.BatchNorm2d(size)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Conv2d(given, size, 1) if given != size else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.down(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.layers = nn.Sequential(ResidualBlock(4, 4), ResidualBlock(4, 8), ResidualBlock(8, 8))
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.flatten(self.pool(self.layers(F.relu(self.stem(x)))), 1))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.middle = nn.Conv2d(8, 8, 3, padding=1)
        self.up2, self.up1 = nn.Conv2d(16, 4, 3, padding=1), nn.Conv2d(8, 2, 3, padding=1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        one = F.relu(self.down1(x))
        two = F.relu(self.down2(self.pool(one)))
        y = F.relu(self.middle(self.pool(two)))
        y = self.up2(torch.cat([F.interpolate(y, scale_factor=2.0), two], dim=1))
        return self.up1(torch.cat([F.interpolate(y, scale_factor=2.0), one], dim=1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(9, 6), nn.LSTM(6, 5, batch_first=True, bidirectional=True)
        self.cell, self.head = nn.GRUCell(10, 5), nn.Linear(10, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        out, (hidden, _) = self.lstm(self.embed(tokens))
        state = hidden[0]
        states = []
        for step in range(4):
            state = self.cell(out[:, step], state)
            states.append(state)
        return self.head(torch.cat([torch.stack(states).mean(0), hidden[1]], dim=-1))


class SoftExperts(nn.Module):
    """All experts run; the router weighs them."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(6, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6)) for _ in range(experts)
        )
        self.norm = nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        y = sum(weights[..., n : n + 1] * expert(x) for n, expert in enumerate(self.experts))
        return self.norm(x + y)


class RoutedExperts(nn.Module):
    """Each row goes to one expert, as its values say: torch.fx cannot trace it."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(6, experts)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(experts))
        self.norm = nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.router(x).softmax(-1).max(-1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            (rows,) = torch.where(chosen == number)
            y.index_add_(0, rows, expert(x[rows]) * weight[rows, None])
        return self.norm(y)


def usual_models() -> dict[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    """By name: a model that torch.fx can trace, and its inputs."""
    torch.manual_seed(0)
    tokens = torch.randint(0, 9, (2, 5))
    return {
        "gpt": (Gpt(), (tokens, torch.arange(5))),
        "resnet": (ResNet(), (torch.randn(2, 3, 8, 8),)),
        "unet": (UNet(), (torch.randn(1, 1, 8, 8),)),
        "recurrent": (Recurrent(), (tokens,)),
        "experts": (SoftExperts(), (torch.randn(7, 6),)),
    }
