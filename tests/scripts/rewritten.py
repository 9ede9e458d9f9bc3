"""A small transformer, and the same written again with other names. One line of the second is wrong."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, LAYERS = 32, 4, 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.ln1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln2(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(50, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens)
        for block in self.h:
            x = block(x)
        return self.head(x)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        parts = (self.query(x), self.key(x), self.value(x))
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH)
        hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_a, self.norm_b = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_a(x))
        return x + self.down(F.gelu(self.up(self.norm_b(x))))


class Rewritten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.unembed = nn.Linear(WIDTH, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.unembed(self.layers(self.embed(tokens)))


def rewritten(model: Model) -> Rewritten:
    """The same weights under the other names."""
    made = Rewritten()
    made.embed.load_state_dict(model.wte.state_dict())
    made.unembed.load_state_dict(model.head.state_dict())
    for new, old in zip(made.layers, model.h, strict=True):
        parts = zip(old.qkv.weight.chunk(3), old.qkv.bias.chunk(3), strict=True)
        attention = new.attention
        layers = (attention.query, attention.key, attention.value)
        for layer, (weight, bias) in zip(layers, parts, strict=True):
            layer.load_state_dict({"weight": weight, "bias": bias})
        pairs = ((attention.out, old.proj), (new.norm_a, old.ln1), (new.norm_b, old.ln2))
        for mine, theirs in (*pairs, (new.up, old.mlp[0]), (new.down, old.mlp[2])):
            mine.load_state_dict(theirs.state_dict())
    return made


torch.manual_seed(0)
model = Model().eval()
mine = rewritten(model).eval()
with torch.no_grad():
    print(model(torch.arange(12).view(2, 6)).sum().item())
