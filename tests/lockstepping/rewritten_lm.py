"""A small language model written twice: rotated positions, grouped heads, a shared table."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from rewritten_vision import varied
from torch import Tensor, nn

__all__ = ["Lm", "OtherLm"]


def _rotated(x: Tensor, fault: str, first: int = 0) -> Tensor:
    length, size = x.shape[-2:]
    rate = 10000.0 ** (-torch.arange(0, size, 2) / size)
    angle = (torch.arange(length)[:, None] + first) * rate
    cos, sin = angle.cos(), angle.sin()
    if fault == "interleaved":
        one, two = x[..., ::2], x[..., 1::2]
        return torch.stack([one * cos - two * sin, one * sin + two * cos], -1).flatten(-2)
    one, two = x.chunk(2, -1)
    return torch.cat([one * cos - two * sin, one * sin + two * cos], -1)


class LmBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.q, self.kv, self.o = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.gate, self.up, self.down = (nn.Linear(*s, bias=False) for s in ((16, 24), (16, 24), (24, 16)))

    def forward(self, x: Tensor) -> Tensor:
        h = self.n1(x)
        q = self.q(h).unflatten(-1, (4, 4)).transpose(1, 2)
        k, v = self.kv(h).unflatten(-1, (2, 2, 4)).permute(2, 0, 3, 1, 4)
        q, k = _rotated(q, ""), _rotated(k, "")
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Lm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(30, 16)
        self.blocks, self.norm = nn.ModuleList(LmBlock(16) for _ in range(3)), nn.RMSNorm(16, eps=1e-6)
        self.head = nn.Linear(16, 30, bias=False)
        varied(self)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class OwnRms(nn.Module):
    def __init__(self, like: nn.RMSNorm, fault: str) -> None:
        super().__init__()
        self.scale, self.fault = nn.Parameter(like.weight.detach().clone()), fault

    def forward(self, x: Tensor) -> Tensor:
        if self.fault == "half norm":
            x = x.half()
        rate = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
        return (x.float() * rate) * ((1 + self.scale) if self.fault == "one plus" else self.scale)


class OwnGroups(nn.Module):
    def __init__(self, like: LmBlock, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.wqkv, self.wo = nn.Linear(16, 32), copy.deepcopy(like.o)
        with torch.no_grad():
            self.wqkv.weight.copy_(torch.cat([like.q.weight, like.kv.weight]))
            self.wqkv.bias.copy_(torch.cat([like.q.bias, like.kv.bias]))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            each.unflatten(-1, (-1, 4)).transpose(1, 2) for each in self.wqkv(x).split([16, 8, 8], dim=-1)
        )
        q, k = _rotated(q, self.fault, 3), _rotated(k, self.fault, 3)
        if self.fault == "groups":
            k, v = k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)
        else:
            k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        length = x.shape[1]
        seen = torch.ones(length, length).tril(1 if self.fault == "ahead" else 0).bool()
        if self.fault == "window":
            seen &= torch.ones(length, length).triu(-4).bool()
        scores = (q @ k.mT) / math.sqrt(4)
        return self.wo((scores.masked_fill(~seen, -1e9).softmax(-1) @ v).transpose(1, 2).flatten(2))


class OtherLmBlock(nn.Module):
    def __init__(self, like: LmBlock, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.pre, self.post = OwnRms(like.n1, ""), OwnRms(like.n2, fault)
        self.mixer = OwnGroups(like, fault)
        self.w13, self.w2 = nn.Linear(16, 48, bias=False), copy.deepcopy(like.down)
        with torch.no_grad():
            self.w13.weight.copy_(torch.cat([like.gate.weight, like.up.weight]))

    def forward(self, x: Tensor) -> Tensor:
        x = self.mixer(self.pre(x)) + (0 if self.fault == "dropped" else x)
        gate, up = self.w13(self.post(x)).chunk(2, -1)
        return torch.add(x, self.w2(gate * torch.sigmoid(1.7 * gate if self.fault == "quick" else gate) * up))


class OtherLm(nn.Module):
    def __init__(self, like: Lm, fault: str = "", at: int = 1) -> None:
        super().__init__()
        self.fault = fault
        self.wte = copy.deepcopy(like.table)
        self.h = nn.Sequential(
            *(OtherLmBlock(b, fault if i == at else "") for i, b in enumerate(like.blocks))
        )
        self.final = OwnRms(like.norm, "")
        if fault == "not tied":
            self.unembed = nn.Linear(16, 30, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) * (4.0 if self.fault == "table scale" else 1.0)
        x = self.final(self.h(x))
        return self.unembed(x) if self.fault == "not tied" else x @ self.wte.weight.T
