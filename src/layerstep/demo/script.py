"""The script that the demo debugs: a few batches, the last of which has padding."""

import torch

from layerstep.demo.model import TinyTransformer

torch.manual_seed(0)
model = TinyTransformer().eval()
batches = [torch.randint(1, 64, (2, 12)) for _ in range(3)]
batches[2][1, 8:] = 0

with torch.no_grad():
    for number, tokens in enumerate(batches, start=1):
        logits = model(tokens)
        print(f"batch {number}: mean logit {logits.mean():.4f}")
