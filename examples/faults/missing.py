"""The head is replaced after the optimizer was made, which still has the old one."""

import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())


torch.manual_seed(0)
model = Net(classes=10)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
model.head = nn.Linear(16, 2)

for _ in range(20):
    inputs = torch.randn(64, 8)
    loss = nn.functional.cross_entropy(model(inputs), (inputs[:, 0] > 0).long())
    model.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
