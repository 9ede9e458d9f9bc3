"""Models of sequences and graphs written twice. The second has one difference on request."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from rewritten_vision import varied
from torch import Tensor, nn

__all__ = [
    "Experts",
    "Graph",
    "OtherExperts",
    "OtherGraph",
    "OtherTagger",
    "OtherTranslator",
    "Tagger",
    "Translator",
    "graph_input",
    "rows",
    "words",
]


def words(high: int = 30, length: int = 9) -> Tensor:
    return torch.randint(1, high, (2, length), generator=torch.Generator().manual_seed(2))


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


# --- a tagger: torch's LSTM here, gates by hand there ---


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(30, 8, padding_idx=0)
        self.rnn = nn.LSTM(8, 6, batch_first=True, bidirectional=True)
        self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, 4)
        varied(self)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.rnn(self.embed(ids))[0])).log_softmax(-1)


class OwnLstm(nn.Module):
    def __init__(self, like: nn.LSTM, fault: str) -> None:
        super().__init__()
        self.fault = fault
        for name, value in like.state_dict().items():
            self.register_parameter(name, nn.Parameter(value.clone()))

    def _one_way(self, x: Tensor, suffix: str) -> Tensor:
        into, over = getattr(self, f"weight_ih_l0{suffix}"), getattr(self, f"weight_hh_l0{suffix}")
        bias = getattr(self, f"bias_ih_l0{suffix}") + getattr(self, f"bias_hh_l0{suffix}")
        hidden = cell = x.new_zeros(len(x), 6)
        found = []
        for step in x.unbind(1):
            i, f, g, o = (step @ into.T + hidden @ over.T + bias).chunk(4, -1)
            if self.fault == "gates":
                i, f = f, i
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            hidden = o.sigmoid() * cell.tanh()
            found.append(hidden)
        return torch.stack(found, 1)

    def forward(self, x: Tensor) -> Tensor:
        back = self._one_way(x.flip(1), "_reverse")
        return torch.cat([self._one_way(x, ""), back if self.fault == "no flip" else back.flip(1)], -1)


class OtherTagger(nn.Module):
    def __init__(self, like: Tagger, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.table, self.encoder = copy.deepcopy(like.embed), OwnLstm(like.rnn, fault)
        self.scale, self.shift = (nn.Parameter(each.detach().clone()) for each in like.norm.parameters())
        self.out = copy.deepcopy(like.head)
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.encoder(self.table(ids))
        unbiased = self.fault == "unbiased"
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=unbiased) + 1e-5).sqrt()
        return F.log_softmax(self.out(x * self.scale + self.shift), dim=1 if self.fault == "axis" else -1)


# --- a translator: torch's own layers here, everything by hand there ---


def _places(length: int, width: int, fault: str) -> Tensor:
    at = torch.arange(length)[:, None] + (1 if fault == "from one" else 0)
    rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    if fault == "halves":
        return torch.cat([(at * rate).sin(), (at * rate).cos()], -1)
    return torch.stack([(at * rate).sin(), (at * rate).cos()], -1).flatten(1)


class Translator(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.source, self.target = nn.Embedding(30, width), nn.Embedding(30, width)
        layer = nn.TransformerEncoderLayer(width, 4, 32, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        below = nn.TransformerDecoderLayer(width, 4, 32, batch_first=True, norm_first=True)
        self.decoder = nn.TransformerDecoder(below, 2, norm=nn.LayerNorm(width))
        self.head = nn.Linear(width, 30)
        varied(self)

    def forward(self, ids: Tensor) -> Tensor:
        padding = ids % 7 == 0
        memory = self.encoder(self.source(ids) + _places(ids.shape[1], 16, ""), src_key_padding_mask=padding)
        shifted = ids.roll(1, 1)
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x = self.target(shifted) + _places(ids.shape[1], 16, "")
        x = self.decoder(x, memory, tgt_mask=mask, memory_key_padding_mask=padding.float() * -1e9)
        return self.head(x)


class OwnAttention(nn.Module):
    def __init__(self, like: nn.MultiheadAttention) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))
        with torch.no_grad():
            for layer, weight, bias in zip(
                (self.q, self.k, self.v),
                like.in_proj_weight.chunk(3),
                like.in_proj_bias.chunk(3),
                strict=True,
            ):
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)
        self.o.load_state_dict(like.out_proj.state_dict())

    def forward(self, x: Tensor, memory: Tensor, hidden: Tensor) -> Tensor:
        q, k, v = (
            f(given).unflatten(-1, (4, 4)).transpose(1, 2)
            for f, given in ((self.q, x), (self.k, memory), (self.v, memory))
        )
        scores = (q @ k.mT / 2).masked_fill(hidden, float("-inf"))
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class OwnEncoderLayer(nn.Module):
    def __init__(self, like: nn.TransformerEncoderLayer, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.attention = OwnAttention(like.self_attn)
        self.norms = nn.ModuleList([copy.deepcopy(like.norm1), copy.deepcopy(like.norm2)])
        self.wide, self.narrow = copy.deepcopy(like.linear1), copy.deepcopy(like.linear2)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        x = self.norms[0](x + self.attention(x, x, hidden))
        made = self.narrow(F.relu(self.wide(x)) if self.fault == "relu" else F.gelu(self.wide(x)))
        return x + self.norms[1](made) if self.fault == "norm first" else self.norms[1](x + made)


class OwnDecoderLayer(nn.Module):
    def __init__(self, like: nn.TransformerDecoderLayer, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.own, self.cross = OwnAttention(like.self_attn), OwnAttention(like.multihead_attn)
        self.n1, self.n2, self.n3 = (copy.deepcopy(each) for each in (like.norm1, like.norm2, like.norm3))
        self.feed = nn.Sequential(copy.deepcopy(like.linear1), nn.ReLU(), copy.deepcopy(like.linear2))

    def forward(self, x: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
        length = x.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(2 if self.fault == "mask" else 1)
        normed = self.n1(x)
        x = x + self.own(normed, normed, later)
        seen = torch.zeros_like(padding) if self.fault == "padding" else padding
        x = x + self.cross(self.n2(x), x if self.fault == "memory" else memory, seen)
        return x + self.feed(self.n3(x))


class OtherTranslator(nn.Module):
    def __init__(self, like: Translator, fault: str = "", at: int = 1) -> None:
        super().__init__()
        self.fault = fault
        self.tables = nn.ModuleDict({"in": copy.deepcopy(like.source), "out": copy.deepcopy(like.target)})
        self.up = nn.ModuleList(
            OwnEncoderLayer(each, fault if i == at else "") for i, each in enumerate(like.encoder.layers)
        )
        self.down = nn.ModuleList(
            OwnDecoderLayer(each, fault if i == at else "") for i, each in enumerate(like.decoder.layers)
        )
        self.end = nn.Sequential(copy.deepcopy(like.decoder.norm), copy.deepcopy(like.head))
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        padding = (ids % 7 == 0)[:, None, None, :]
        memory = self.tables["in"](ids) + _places(ids.shape[1], 16, "")
        for layer in self.up:
            memory = layer(memory, padding)
        x = self.tables["out"](ids.roll(1, 1)) + _places(ids.shape[1], 16, self.fault)
        for layer in self.down:
            x = layer(x, memory, padding)
        return self.end(x)


# --- experts: each on its own tokens here, all on all tokens there ---


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.into, self.router = nn.Linear(6, 8), nn.Linear(8, 4, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)) for _ in range(4)
        )
        self.norm, self.out = nn.RMSNorm(8, eps=1e-6), nn.Linear(8, 3)
        varied(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        chances, which = self.router(x).softmax(-1).topk(2, -1)
        chances = chances / chances.sum(-1, keepdim=True)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = (which == number).nonzero(as_tuple=True)
            mixed[token] += expert(x[token]) * chances[token, place, None]
        return self.out(self.norm(x + mixed))


class OtherExperts(nn.Module):
    def __init__(self, like: Experts, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.a, self.gate, self.z = (copy.deepcopy(each) for each in (like.into, like.router, like.out))
        self.up = nn.Parameter(torch.stack([e[0].weight.detach() for e in like.experts]))
        self.up_bias = nn.Parameter(torch.stack([e[0].bias.detach() for e in like.experts]))
        self.down = nn.Parameter(torch.stack([e[2].weight.detach() for e in like.experts]))
        self.down_bias = nn.Parameter(torch.stack([e[2].bias.detach() for e in like.experts]))
        self.gain = nn.Parameter(like.norm.weight.detach().clone())
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        chances, which = self.gate(x).softmax(-1).topk(2, -1)
        if self.fault != "not normalised":
            chances = chances / chances.sum(-1, keepdim=True)
        hidden = F.silu(torch.einsum("td,ehd->teh", x, self.up) + self.up_bias)
        made = torch.einsum("teh,edh->ted", hidden, self.down) + self.down_bias
        picked = made.gather(1, which[..., None].expand(-1, -1, 8))
        x = x + (picked * chances[..., None]).sum(1)
        if self.fault == "eps":
            return self.z(x * (x.square().mean(-1, keepdim=True) + 1e-3).rsqrt() * self.gain)
        return self.z(x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * self.gain)


# --- a graph: sums over neighbours by index here, by a matrix there ---


class Convolve(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear, self.bias = nn.Linear(width, width, bias=False), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        loops = torch.arange(len(x)).expand(2, -1)
        source, target = torch.cat([edges, loops], 1)
        degree = torch.zeros(len(x)).index_add(0, target, torch.ones(len(target)))
        weight = (degree[source] * degree[target]).rsqrt()
        made = self.linear(x)[source] * weight[:, None]
        return torch.zeros_like(x).index_add(0, target, made) + self.bias


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.into = nn.Linear(5, 8)
        self.layers, self.out = nn.ModuleList(Convolve(8) for _ in range(3)), nn.Linear(8, 2)
        varied(self)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.into(x)
        for layer in self.layers:
            x = F.elu(layer(x, edges))
        return self.out(x)


class Multiply(nn.Module):
    def __init__(self, like: Convolve, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.weight = nn.Parameter(like.linear.weight.detach().T.clone())
        self.shift = nn.Parameter(like.bias.detach().clone())

    def forward(self, x: Tensor, near: Tensor) -> Tensor:
        near = near if self.fault == "no loops" else near + torch.eye(len(x))
        degree = near.sum(1)
        if self.fault == "one side":
            near = near / degree[:, None]
        else:
            near = near * degree.rsqrt()[:, None] * degree.rsqrt()[None]
        return near @ (x @ self.weight) + self.shift


class OtherGraph(nn.Module):
    def __init__(self, like: Graph, fault: str = "", at: int = 1) -> None:
        super().__init__()
        self.fault = fault
        self.first, self.last = copy.deepcopy(like.into), copy.deepcopy(like.out)
        self.parts = nn.ModuleList(
            Multiply(each, fault if i == at else "") for i, each in enumerate(like.layers)
        )

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        near = torch.zeros(len(x), len(x))
        near[edges[1], edges[0]] = 1.0
        x = self.first(x)
        for at, part in enumerate(self.parts):
            x = F.elu(part(x, near), alpha=0.5 if self.fault == "alpha" and at == 1 else 1.0)
        return self.last(x)


def graph_input() -> tuple[Tensor, Tensor]:
    ring = torch.arange(7)
    return rows(7, 5), torch.cat([torch.stack([ring, ring.roll(1)]), torch.tensor([[0, 2], [3, 5]])], 1)
