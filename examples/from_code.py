"""The library: a breakpoint with a condition, set from code, answered by scripted commands.

python examples/from_code.py
"""

import torch
from torch import nn

from layerstep import DebugConsole

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Linear(16, 4), nn.Softmax(dim=-1))

console = DebugConsole(model, commands=["continue", "where", "stats out", "finish"])
console.breakpoint("2", condition="out.std() > 0.1")
probabilities = console.run(torch.randn(3, 8))
print("rows add up to", probabilities.sum(dim=-1).tolist())
