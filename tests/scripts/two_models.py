"""A student learns from a teacher: two models and a loss."""

import torch
from torch import nn

torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).eval()
student = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)

for _ in range(2):
    x = torch.randn(3, 4)
    with torch.no_grad():
        wanted = teacher(x)
    loss = criterion(student(x), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.3f}")
