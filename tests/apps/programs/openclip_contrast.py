"""OpenCLIP: two towers in one step, image and text, and its contrastive loss."""

import vision_ops

import torch
from open_clip import CLIP, ClipLoss

torch.manual_seed(0)
model = CLIP(
    embed_dim=16,
    vision_cfg={"image_size": 32, "layers": 2, "width": 64, "patch_size": 16},
    text_cfg={"context_length": 8, "vocab_size": 50, "width": 32, "heads": 2, "layers": 2},
)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
criterion = ClipLoss()
for _ in range(3):
    image, text, scale = model(torch.randn(3, 3, 32, 32), torch.randint(1, 50, (3, 8)))
    loss = criterion(image, text, scale)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{loss.item():.9f}")
