"""A training whose loss jumps: one row of the data is in other units."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
rows = torch.randn(256, 6)
prices = rows.sum(dim=1, keepdim=True)
rows[97] *= 1000  # in grams; all others are in kilograms
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for x, y in DataLoader(TensorDataset(rows, prices), batch_size=8, shuffle=True):
    loss = nn.functional.smooth_l1_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if loss > 5:
        print(f"loss {loss.item():.3f}")
print("done")
