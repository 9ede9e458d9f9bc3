"""Weights drawn with a std of 1 instead of 1/√width: each layer makes the gradient larger."""

import torch
from torch import nn

torch.manual_seed(0)
layers = []
for _ in range(8):
    layers += [nn.Linear(64, 64), nn.ReLU()]
model = nn.Sequential(*layers, nn.Linear(64, 1))
for layer in model:
    if isinstance(layer, nn.Linear):
        nn.init.normal_(layer.weight, std=1.0)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for _ in range(20):
    inputs = torch.randn(64, 64)
    loss = nn.functional.mse_loss(model(inputs), inputs.mean(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3g}")
