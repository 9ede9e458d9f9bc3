"""A planted cost: a mean over time that was written as a Python loop. `profile advice` names its line."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Smooth(nn.Module):
    """An exponential mean along the sequence."""

    def forward(self, x: Tensor) -> Tensor:
        state = x[:, 0]
        steps = []
        for position in range(x.shape[1]):
            state = 0.9 * state + 0.1 * x[:, position]  # the cost: three small operations a position
            steps.append(state)
        return torch.stack(steps, dim=1)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), Smooth(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(8):
    x = torch.randn(4, 200, 16)
    loss = F.mse_loss(model(x), x.mean(dim=-1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
