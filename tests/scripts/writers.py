"""A small net in training, and something beside the optimizer that writes to its weights."""

import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.norm(self.stem(x))))


def keep_small(model: nn.Module) -> None:
    """Meant for the biases; it takes the weights, too."""
    for parameter in model.parameters():
        parameter.data.clamp_(-0.2, 0.2)


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)

for step in range(2):
    inputs = torch.randn(32, 8)
    loss = nn.functional.cross_entropy(model(inputs), (inputs[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 0:
        keep_small(model)
    if step == 1:
        model.head.weight.detach().numpy()[0, 0] = 5.0
model(torch.randn(4, 8))
print(f"loss {loss.item():.3f}")
