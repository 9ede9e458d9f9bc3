"""torchdiffeq: a neural differential equation, with the adjoint method."""

import torch
from torch import nn
from torchdiffeq import odeint_adjoint


class Flow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.net(y**3)


torch.manual_seed(0)
flow = Flow()
optimizer = torch.optim.RMSprop(flow.parameters(), 1e-3)
start, times = torch.tensor([[2.0, 0.0]]), torch.linspace(0, 1, 5)
for _ in range(3):
    loss = odeint_adjoint(flow, start, times, method="rk4").abs().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{loss.item():.9f}")
