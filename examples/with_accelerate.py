"""A loop with accelerate: attach to the model after `prepare`, on the first process alone.

python examples/with_accelerate.py
accelerate launch --cpu --num_processes 2 examples/with_accelerate.py
"""

import contextlib

import torch
from accelerate import Accelerator
from torch import nn

from layerstep import DebugConsole

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 2))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
data = torch.utils.data.TensorDataset(torch.randn(32, 10), torch.randint(2, (32,)))
model, optimizer, loader = accelerator.prepare(
    model, optimizer, torch.utils.data.DataLoader(data, batch_size=4)
)

debugger: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
if accelerator.is_main_process:
    lines = ["catch nonfinite", "break 1 if step == 2", "continue", "stats out", "detach"]
    debugger = DebugConsole(accelerator.unwrap_model(model), commands=lines)

with debugger:
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
accelerator.print(f"the last loss is {loss.item():.4f}")
