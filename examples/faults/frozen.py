"""Only the old head was meant to be frozen, but the pattern also matches the new one."""

import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.old_head = nn.Linear(16, 16)
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.old_head(self.body(x).relu()))


torch.manual_seed(0)
model = Net()
for name, parameter in model.named_parameters():
    if "head" in name:
        parameter.requires_grad = False
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)

for _ in range(20):
    inputs = torch.randn(64, 8)
    loss = nn.functional.cross_entropy(model(inputs), (inputs[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
