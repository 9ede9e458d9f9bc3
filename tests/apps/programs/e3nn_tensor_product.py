"""e3nn: an equivariant layer, whose code is generated and compiled by torch.fx and TorchScript."""

import torch
from e3nn import o3
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = o3.FullyConnectedTensorProduct("4x0e + 2x1o", "1x0e + 1x1o", "4x0e + 2x1o")
        self.second = o3.Linear("4x0e + 2x1o", "1x0e")

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x, y))


with torch.jit.optimized_execution(False):
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(3):
        loss = net(torch.randn(5, 10), torch.randn(5, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"{loss.item():.6f}")
