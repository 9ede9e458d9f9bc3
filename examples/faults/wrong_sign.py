"""A function with a backward of its own, which has the wrong sign: the layer before it climbs the loss."""

from typing import Any

import torch
from torch import Tensor, nn


class Softplus(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.log1p(torch.exp(-x.abs())) + x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return -grad * torch.sigmoid(x)


class Activation(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Softplus.apply(x)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), Activation(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for _ in range(20):
    inputs = torch.randn(64, 8)
    loss = nn.functional.mse_loss(model(inputs), inputs[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
