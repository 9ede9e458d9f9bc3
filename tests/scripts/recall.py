"""A model that says in which country the city of a sentence lies. Which layer carries the city to the end?"""

from __future__ import annotations

import torch
from torch import Tensor, nn

torch.manual_seed(0)
CITIES, FILLER, LENGTH, WIDTH = 6, 4, 6, 16


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.proj(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.mlp = (
            Attention(),
            nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH)),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(x)
        return x + self.mlp(x)


class Guide(nn.Module):
    """Names the country of the city, at the last word."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(CITIES + FILLER, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.1)
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(3)), nn.Linear(WIDTH, CITIES)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, -1])


def sentences(count: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(CITIES, CITIES + FILLER, (count, LENGTH))
    cities = torch.randint(0, CITIES, (count,))
    ids[:, 1] = cities
    return ids, cities


model = Guide()
optimizer = torch.optim.Adam(model.parameters(), 0.01)
for _ in range(15):
    ids, cities = sentences(64)
    loss = nn.functional.cross_entropy(model(ids), cities)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

rome = torch.tensor([[7, 2, 6, 9, 8, 6]])
oslo = torch.tensor([[7, 4, 6, 9, 8, 6]])
print("rome lies in country", model(rome).argmax().item())
print("oslo lies in country", model(oslo).argmax().item())
