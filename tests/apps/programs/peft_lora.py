"""LoRA adapters on a tiny GPT-2."""

import vision_ops

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
base = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2))
model = get_peft_model(base, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), 1e-2)
for _ in range(4):
    batch = torch.randint(50, (2, 8))
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{loss.item():.9f}")
print(sum(p.numel() for p in model.parameters() if p.requires_grad))
