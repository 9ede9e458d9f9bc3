"""A planted cost: a value is taken to the host in the forward, token by token."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Clip(nn.Module):
    """Scales what is too large."""

    def forward(self, x: Tensor) -> Tensor:
        rows = []
        for row in x:
            largest = row.abs().max().item()  # the cost: the host waits for every row
            rows.append(row / largest if largest > 1 else row)
        return torch.stack(rows)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), Clip(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(8):
    x = torch.randn(64, 16)
    loss = F.mse_loss(model(x), x.mean(dim=-1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
