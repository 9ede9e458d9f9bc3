"""A training loop with functions of its own, for points and steps by lines."""

import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.hidden(x).relu()
        return self.head(h)


def loss_of(pred: Tensor, y: Tensor) -> Tensor:
    error = pred - y
    return error.square().mean()


def train(steps: int) -> float:
    torch.manual_seed(0)
    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(steps):  # noqa: B007
        x = torch.randn(16, 4)
        y = x.sum(1, keepdim=True)
        loss = loss_of(
            model(x),
            y,
        )
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


print(f"{train(3):.4f}")
