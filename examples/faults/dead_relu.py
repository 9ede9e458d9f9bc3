"""A bias far below zero: most units of the ReLU never become active, whatever the input."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
with torch.no_grad():
    model[0].bias[:24] = -20.0
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for _ in range(40):
    inputs = torch.randn(64, 8)
    loss = nn.functional.cross_entropy(model(inputs), (inputs[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
