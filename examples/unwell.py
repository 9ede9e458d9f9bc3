"""A classifier that hardly learns: one layer begins far too large, one is mostly dead, and memory grows.

layerstep run examples/unwell.py
"""

import torch
from torch import nn
from torch.nn import functional as F


class Classifier(nn.Module):
    def __init__(self, width: int = 32, classes: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(16, width), nn.ReLU())
        self.gate = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.middle = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, classes)
        nn.init.normal_(self.gate[0].weight, std=4.0)  # the tanh has little but ±1 to give
        nn.init.constant_(self.middle[0].bias[:24], -8.0)  # no input lifts these units above zero

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.gate(self.stem(x))))


torch.manual_seed(0)
model = Classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

seen = []
for step in range(6):
    x, wanted = torch.randn(24, 16), torch.randint(0, 4, (24,))
    logits = model(x)
    seen.append(logits)  # for a metric at the end; not detached, so each keeps its graph, too
    loss = F.cross_entropy(logits, wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.3f}")
