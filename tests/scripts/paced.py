"""A training whose parts take times that differ clearly: a transcript of it has its rows in one order."""

import time

import torch
from torch import Tensor, nn


class Waiting(torch.autograd.Function):
    """Takes its time, both ways."""

    @staticmethod
    def forward(ctx, x, ahead, back):  # type: ignore[no-untyped-def]
        ctx.back = back
        time.sleep(ahead)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        time.sleep(ctx.back)
        return gradient, None, None


class Paced(nn.Linear):
    """A layer that takes longer than its work does."""

    def __init__(self, width: int, ahead: float, back: float) -> None:
        super().__init__(width, width, bias=False)
        self.ahead, self.back = ahead, back

    def forward(self, x: Tensor) -> Tensor:
        return Waiting.apply(super().forward(x), self.ahead, self.back)  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attend = Paced(width, 0.012, 0.024)
        self.mix = Paced(width, 0.006, 0.014)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.001)
        return self.mix(self.attend(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block(256)
        self.head = nn.Linear(256, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.001)
        return self.head(self.block(x))


class Slow(torch.optim.SGD):
    def step(self, closure=None):  # type: ignore[no-untyped-def]
        time.sleep(0.013)
        return super().step(closure)


torch.manual_seed(0)
model = Net()
optimizer = Slow(model.parameters(), lr=0.01)

for _ in range(60):
    time.sleep(0.008)
    inputs = torch.randn(16, 256)
    loss = model(inputs).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
