"""zero_grad() is missing: each step takes the gradients of all steps before it."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for _ in range(40):
    inputs = torch.randn(64, 8)
    loss = nn.functional.mse_loss(model(inputs), inputs[:, :1])
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
