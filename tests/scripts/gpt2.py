"""A tiny GPT-2 from a configuration, trained for two steps and then asked for tokens."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
config = GPT2Config(
    vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=None
)
model = GPT2LMHeadModel(config)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

print("training")
for step in range(2):
    tokens = torch.randint(0, 32, (2, 8))
    loss = model(tokens, labels=tokens).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.4f}")

model.eval()
prompt = torch.tensor([[1, 2, 3]])
generated = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=4, do_sample=False)
print(f"{generated.shape[1] - prompt.shape[1]} new tokens")
