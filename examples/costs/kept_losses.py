"""Each loss is kept for a plot at the end, with the graph behind it: memory grows from step to step."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []

for _ in range(12):
    inputs = torch.randn(32, 16)
    loss = nn.functional.cross_entropy(model(inputs), (inputs[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss)
print(f"mean loss {sum(loss.item() for loss in losses) / len(losses):.3f}")
