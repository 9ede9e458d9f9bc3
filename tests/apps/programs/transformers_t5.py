"""A tiny T5 learns to copy."""

import vision_ops

import torch
from transformers import T5Config, T5ForConditionalGeneration

torch.manual_seed(0)
config = T5Config(
    vocab_size=40, d_model=32, d_ff=64, d_kv=16, num_layers=2, num_heads=2, decoder_start_token_id=0
)
model = T5ForConditionalGeneration(config)
optimizer = torch.optim.Adafactor(model.parameters(), 1e-2)
for _ in range(4):
    batch = torch.randint(2, 40, (4, 6))
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{loss.item():.9f}")
