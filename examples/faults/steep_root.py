"""A distance whose slope is infinite where two points are the same: the loss is fine, its gradient NaN."""

import torch
from torch import Tensor, nn


class Distance(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        squares = ((x - y) ** 2).sum(-1)
        return squares.sqrt()


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        self.distance = Distance()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.distance(self.encode(x), self.encode(y))


torch.manual_seed(0)
model = Pairs()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, 6):
    x, y = torch.randn(6, 8), torch.randn(6, 8)
    if step == 3:
        y[4] = x[4]
    loss = model(x, y).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3g}")
