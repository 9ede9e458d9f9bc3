"""The loss on held-out data is kept for a plot, with the graph behind it: memory grows from step to step."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
held_out = torch.randn(256, 16)
losses = []

for _ in range(12):
    inputs = torch.randn(32, 16)
    loss = nn.functional.cross_entropy(model(inputs), (inputs[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(nn.functional.cross_entropy(model(held_out), (held_out[:, 0] > 0).long()))
print(f"held-out loss {losses[0].item():.3f}, then {losses[-1].item():.3f}")
