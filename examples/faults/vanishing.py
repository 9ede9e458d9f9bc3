"""A deep stack of sigmoids: the gradient shrinks with each of them, and the first layers learn nothing."""

import torch
from torch import nn

torch.manual_seed(0)
layers = [nn.Linear(16, 16)]
for _ in range(9):
    layers += [nn.Sigmoid(), nn.Linear(16, 16)]
model = nn.Sequential(*layers, nn.Sigmoid(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for _ in range(20):
    inputs = torch.randn(64, 16)
    loss = nn.functional.cross_entropy(model(inputs), (inputs.sum(1) > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
