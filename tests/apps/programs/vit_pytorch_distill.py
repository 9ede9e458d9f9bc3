"""vit-pytorch: a ViT with dropout learns from a teacher that it calls in its own forward."""

import vision_ops

import torch
from torch import nn
from vit_pytorch.distill import DistillableViT, DistillWrapper

torch.manual_seed(0)
teacher = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
student = DistillableViT(
    image_size=32, patch_size=8, num_classes=5, dim=32, depth=2, heads=2, mlp_dim=64, dropout=0.1
)
distiller = DistillWrapper(student=student, teacher=teacher, temperature=3, alpha=0.5)
optimizer = torch.optim.AdamW(distiller.parameters(), 1e-3)
for _ in range(3):
    loss = distiller(torch.randn(2, 3, 32, 32), torch.randint(5, (2,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{loss.item():.9f}")
