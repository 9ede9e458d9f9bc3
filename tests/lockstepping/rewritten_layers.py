"""Small nets in which one kind of layer is written twice. Each function returns two models and an input."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from rewritten_sequences import rows, words
from rewritten_vision import varied
from torch import Tensor, nn

__all__ = [
    "bags",
    "batch_norms",
    "convolutions_for_linears",
    "functions",
    "left_on",
    "low_rank",
    "own_norms",
    "parallel",
    "separate_heads",
    "stacked",
    "tied",
    "weight_norms",
    "wrapped",
]

Made = tuple[nn.Module, nn.Module, tuple[Tensor, ...]]


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(3))
        self.act, self.out = nn.GELU(), nn.Linear(16, 4)
        varied(self)

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + self.act(layer(norm(x)))
        return self.out(x)


class WithFunctions(nn.Module):
    def __init__(self, like: Deep, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.a = nn.ModuleDict({f"fc{i}": copy.deepcopy(each) for i, each in enumerate(like.layers)})
        self.b = nn.ModuleDict({f"ln{i}": copy.deepcopy(each) for i, each in enumerate(like.norms)})
        self.z = copy.deepcopy(like.out)

    def forward(self, x: Tensor) -> Tensor:
        for i in range(3):
            fault = self.fault if i == 1 else ""
            hidden = self.a[f"fc{i}"](self.b[f"ln{i}"](x))
            act = {"relu": F.relu, "silu": F.silu, "mish": F.mish}.get(fault, F.gelu)
            hidden = F.gelu(hidden, approximate="tanh") if fault == "tanh" else act(hidden)
            hidden = hidden.bfloat16().float() if fault == "cast" else hidden
            hidden = hidden.clamp(max=1.0) if fault == "clamp" else hidden
            x = hidden * (-1 if fault == "sign" else 1) + (0 if fault == "dropped" else x)
        return self.z(x)


def functions(fault: str = "") -> Made:
    model = Deep()
    return model, WithFunctions(model, fault).eval(), (rows(5, 16),)


class OwnNorm(nn.Module):
    def __init__(self, like: nn.LayerNorm, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.gain, self.shift = (nn.Parameter(each.detach().clone()) for each in like.parameters())

    def forward(self, x: Tensor) -> Tensor:
        axis = 0 if self.fault == "axis" else -1
        mean = 0.0 if self.fault == "no mean" else x.mean(axis, keepdim=True)
        var = x.var(axis, keepdim=True, unbiased=self.fault == "unbiased")
        size = var.sqrt() + 1e-5 if self.fault == "eps outside" else (var + 1e-5).sqrt()
        return (x - mean) / size * self.gain + (0.0 if self.fault == "no shift" else self.shift)


def own_norms(fault: str = "") -> Made:
    model = Deep()
    other = copy.deepcopy(model)
    for i, norm in enumerate(model.norms):
        other.norms[i] = OwnNorm(norm, fault if i == 1 else "")
    return model, other.eval(), (rows(16, 16),)


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Tensor) -> Tensor:
        return self.module(*args)


def wrapped() -> Made:
    model = Deep()
    return model, Wrapper(Wrapper(copy.deepcopy(model))), (rows(5, 16),)


def _linears(width: int = 8) -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3))
    return varied(nn.Sequential(*layers))


class Narrow(nn.Module):
    """Linear layers as convolutions over one place."""

    def __init__(self, like: nn.Sequential, fault: str) -> None:
        super().__init__()
        linears = (like[0], like[2], like[4])
        self.c = nn.ModuleList(nn.Conv1d(each.in_features, each.out_features, 1) for each in linears)
        with torch.no_grad():
            for mine, theirs in zip(self.c, linears, strict=True):
                mine.weight.copy_(theirs.weight[:, :, None])
                mine.bias.copy_(theirs.bias)
            if fault == "transposed":
                self.c[1].weight.copy_(like[2].weight.T[:, :, None])
            elif fault == "bias":
                self.c[1].bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        first, second, third = self.c
        return third(second(first(x.mT).tanh()).tanh()).mT


def convolutions_for_linears(fault: str = "") -> Made:
    model = _linears(16)
    return model, Narrow(model, fault), (rows(2, 5, 8),)


class LowRank(nn.Module):
    def __init__(self, like: nn.Linear, scale: float) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)
        self.base, self.scale = copy.deepcopy(like), scale
        with torch.no_grad():
            self.base.weight -= 0.5 * self.b.weight @ self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * self.b(self.a(x))


def low_rank(fault: str = "") -> Made:
    model = _linears()
    other = copy.deepcopy(model)
    other[2] = LowRank(model[2], 1.0 if fault else 0.5)
    return model, other.eval(), (rows(5, 8),)


def weight_norms(fault: str = "") -> Made:
    model = _linears()
    other = copy.deepcopy(model)
    other[2] = nn.utils.parametrizations.weight_norm(other[2])
    if fault:
        other[2].parametrizations.weight.original0.data *= 1.1
    return model, other, (rows(5, 8),)


def batch_norms(fault: str = "") -> Made:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
    )
    other = copy.deepcopy(model)
    if fault.startswith("momentum"):
        other[4].momentum = 0.01
    elif fault == "eps":
        other[4].eps = 1e-3
    elif fault == "eval":
        other[4].eval()
    if fault.endswith("in evaluation"):
        model.eval(), other.eval()
    return model, other, (rows(4, 3, 8, 8),)


def left_on(fault: str = "") -> Made:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 2)
    ).eval()
    other = copy.deepcopy(model)
    other[1].p = 0.7
    if fault:
        other[3].train()
    return model, other, (rows(5, 8),)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.e, self.m, self.h = nn.Embedding(30, 8), nn.Linear(8, 8), nn.Linear(8, 30, bias=False)
        varied(self)

    def forward(self, ids: Tensor) -> Tensor:
        return self.h(self.m(self.e(ids).mean(1)).tanh())


class Bags(Words):
    def forward(self, ids: Tensor) -> Tensor:
        return self.h(self.m(self.e(ids)).tanh())


def bags(fault: str = "") -> Made:
    model, other = Words(), Bags()
    other.e = nn.EmbeddingBag(30, 8, mode="sum" if fault == "sum" else "mean")
    other.e.load_state_dict(model.e.state_dict())
    if fault == "row":
        other.e.weight.data[int(words()[0, 0])] += 0.1
    return model, other.eval(), (words(),)


def tied(fault: str = "") -> Made:
    model, other = Words(), Words()
    model.h.weight = model.e.weight
    other.h.weight.data.copy_(model.e.weight)
    if fault:
        other.h.weight.data[4] += 0.1
    return model, other, (words(),)


class Stacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.r, self.o = nn.GRU(4, 6, num_layers=2, batch_first=True), nn.Linear(6, 2)
        varied(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(self.r(x)[0])


class Cells(nn.Module):
    def __init__(self, like: nn.GRU, layer: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(like.input_size if not layer else 6, 6)
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(self.cell, name).data.copy_(getattr(like, f"{name}_l{layer}"))

    def forward(self, x: Tensor) -> Tensor:
        hidden, found = x.new_zeros(len(x), 6), []
        for step in x.unbind(1):
            hidden = self.cell(step, hidden)
            found.append(hidden)
        return torch.stack(found, 1)


class Unstacked(nn.Module):
    def __init__(self, like: Stacked) -> None:
        super().__init__()
        self.low, self.up, self.o = Cells(like.r, 0), Cells(like.r, 1), copy.deepcopy(like.o)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(self.up(self.low(x)))


def stacked(fault: str = "") -> Made:
    model = Stacked()
    other = Unstacked(model)
    if fault:
        other.up.cell.bias_hh.data[12] += 0.3
    return model, other.eval(), (rows(3, 5, 4),)


class Parallel(nn.Module):
    def __init__(self, order: str = "") -> None:
        super().__init__()
        self.order = order
        self.n, self.a = nn.LayerNorm(8), nn.Linear(8, 8)
        self.m = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x: Tensor) -> Tensor:
        if self.order == "serial":
            x = x + self.a(self.n(x))
            return x + self.m(self.n(x))
        h = self.n(x)
        if self.order == "turned":
            wide = self.m(h)
            return wide + self.a(h) + x
        return x + self.a(h) + self.m(h)


def parallel(fault: str = "") -> Made:
    torch.manual_seed(0)
    model = varied(nn.Sequential(Parallel(), Parallel(), Parallel()))
    other = copy.deepcopy(model)
    for block in other:
        block.order = "turned"
    if fault:
        other[1].order = fault
    return model, other, (rows(4, 8),)


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.i, self.att = nn.Linear(8, 16), nn.MultiheadAttention(16, 4, batch_first=True)
        self.n, self.o = nn.LayerNorm(16), nn.Linear(16, 2)
        varied(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.i(x)
        return self.o(self.n(x + self.att(x, x, x, need_weights=False)[0]))


class Head(nn.Module):
    def __init__(self, like: nn.MultiheadAttention, number: int, fault: str) -> None:
        super().__init__()
        self.size = 16 if fault == "scale" else 4
        self.q, self.k, self.v = (nn.Linear(16, 4) for _ in range(3))
        for at, layer in enumerate((self.q, self.k, self.v)):
            own = slice(16 * at + 4 * number, 16 * at + 4 * number + 4)
            layer.weight.data.copy_(like.in_proj_weight[own])
            layer.bias.data.copy_(like.in_proj_bias[own])

    def forward(self, x: Tensor) -> Tensor:
        return (self.q(x) @ self.k(x).mT / self.size**0.5).softmax(-1) @ self.v(x)


class Apart(nn.Module):
    def __init__(self, like: Whole, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.a, self.n, self.z = (copy.deepcopy(each) for each in (like.i, like.n, like.o))
        self.heads = nn.ModuleList(Head(like.att, number, fault) for number in range(4))
        self.mix = nn.Linear(16, 16)
        self.mix.load_state_dict(like.att.out_proj.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        made = [head(x) for head in self.heads]
        return self.z(self.n(x + self.mix(torch.cat(made[::-1] if self.fault == "order" else made, -1))))


def separate_heads(fault: str = "") -> Made:
    model = Whole()
    return model, Apart(model, fault).eval(), (rows(2, 5, 8),)
