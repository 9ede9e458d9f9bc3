"""A transformer of blocks, and the same with all layers at the top and no module around them."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from rewritten_vision import varied
from torch import Tensor, nn

__all__ = ["Blocks", "Flat"]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.att = nn.MultiheadAttention(16, 4, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: Tensor) -> Tensor:
        h = self.ln1(x)
        x = x + self.att(h, h, h)[0]
        return x + self.ff(self.ln2(x))


class Blocks(nn.Module):
    """Returns a dictionary; its positions are an embedding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.emb, self.pos = nn.Embedding(30, 16), nn.Embedding(16, 16)
        self.blocks, self.out = nn.ModuleList(Block() for _ in range(3)), nn.Linear(16, 5)
        varied(self)

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        x = self.emb(ids) + self.pos(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return {"logits": self.out(x), "hidden": x}


class Flat(nn.Module):
    """Returns a tensor; its positions are a parameter."""

    def __init__(self, like: Blocks, fault: str = "", at: int = 1) -> None:
        super().__init__()
        self.fault, self.at = fault, at
        self.e, self.o = copy.deepcopy(like.emb), copy.deepcopy(like.out)
        self.p = nn.Parameter(like.pos.weight.detach().clone())
        for i, block in enumerate(like.blocks):
            qkv, out = nn.Linear(16, 48), nn.Linear(16, 16)
            qkv.weight.data.copy_(block.att.in_proj_weight)
            qkv.bias.data.copy_(block.att.in_proj_bias)
            out.load_state_dict(block.att.out_proj.state_dict())
            own = {"qkv": qkv, "wo": out, "up": block.ff[0], "down": block.ff[2]}
            for name, layer in {**own, "n1": block.ln1, "n2": block.ln2}.items():
                self.add_module(f"b{i}_{name}", copy.deepcopy(layer))
        if fault == "eps":
            self.get_submodule(f"b{at}_n2").eps = 1e-3
        elif fault == "weight":
            self.get_submodule(f"b{at}_down").weight.data[3, 4] += 0.2
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.e(ids) + self.p[: ids.shape[1]]
        for i in range(3):
            x = self._block(x, i, self.fault if i == self.at else "")
        return self.o(x)

    def _block(self, x: Tensor, i: int, fault: str) -> Tensor:
        qkv, out, up, down, n1, n2 = (
            self.get_submodule(f"b{i}_{name}") for name in ("qkv", "wo", "up", "down", "n1", "n2")
        )
        q, k, v = (each.unflatten(-1, (4, 4)).transpose(1, 2) for each in qkv(n1(x)).chunk(3, -1))
        if fault == "swapped":
            k, v = v, k
        mixed = (q @ k.mT / (4 if fault == "scale" else 2)).softmax(-1) @ v
        x = x + out(mixed.transpose(1, 2).flatten(2))
        hidden = up(n2(x))
        made = down(F.relu(hidden) if fault == "relu" else F.gelu(hidden))
        return made * (2 if fault == "double" else 1) + x
