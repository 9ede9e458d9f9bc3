"""timm's models: a ResNet and a small ViT, trained for three steps each, with its own optimizer and EMA."""

import vision_ops

import timm
import torch
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3
from torch import nn

for name, options in (("resnet10t", {}), ("vit_tiny_patch16_224", {"img_size": 32, "depth": 2})):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, drop_rate=0.1, **options)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3)
    average = ModelEmaV3(model, decay=0.9)
    for _ in range(3):
        loss = nn.functional.cross_entropy(model(torch.randn(4, 3, 32, 32)), torch.randint(5, (4,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update(model)
        print(name, f"{loss.item():.9f}")
    model.eval()
    with torch.no_grad():
        print(f"{average.module(torch.ones(1, 3, 32, 32)).sum().item():.9f}")
