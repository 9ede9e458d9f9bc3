"""An ordinary training loop: a character model on one sentence. Nothing in it knows of layerstep.

layerstep run examples/charlm.py
"""

import torch
from torch import nn
from torch.nn import functional as F

TEXT = "the quick brown fox jumps over the lazy dog. " * 8
CHARS = sorted(set(TEXT))


class CharModel(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(CHARS), width)
        self.rnn = nn.LSTM(width, width, num_layers=2, batch_first=True, dropout=0.1)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(CHARS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x, _ = self.rnn(self.embed(tokens))
        return self.head(self.norm(x))


torch.manual_seed(0)
data = torch.tensor([CHARS.index(char) for char in TEXT])
model = CharModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for step in range(20):
    start = torch.randint(0, len(data) - 33, (8, 1)) + torch.arange(33)
    batch = data[start]
    logits = model(batch[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(f"step {step}: loss {loss.item():.3f}")
