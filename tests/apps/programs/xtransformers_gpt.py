"""x-transformers: a decoder with rotary positions, trained and sampled."""

import torch
from x_transformers import Decoder, TransformerWrapper
from x_transformers.autoregressive_wrapper import AutoregressiveWrapper

torch.manual_seed(0)
layers = Decoder(dim=32, depth=2, heads=2, rotary_pos_emb=True, attn_flash=True)
model = AutoregressiveWrapper(TransformerWrapper(num_tokens=40, max_seq_len=16, attn_layers=layers))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for _ in range(3):
    loss = model(torch.randint(40, (2, 12)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{loss.item():.9f}")
print(model.generate(torch.zeros(1, 1, dtype=torch.long), 6).tolist())
