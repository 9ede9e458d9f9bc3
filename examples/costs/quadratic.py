"""A planted cost: attention to the last 16 positions that computes the scores of all and throws most away."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WINDOW = 16


class Local(nn.Module):
    """Each position looks at the WINDOW before it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(-2, -1)  # the cost: every position with every other
        distance = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        near = (distance >= 0) & (distance < WINDOW)
        return scores.masked_fill(~near, -torch.inf).softmax(dim=-1) @ v


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 16), Local(16), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(6):
    x = torch.randn(2, 512, 16)
    loss = F.mse_loss(model(x), x.mean(dim=-1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
