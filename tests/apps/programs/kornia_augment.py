"""kornia: augmentations that are modules, before a small classifier."""

import kornia.augmentation as K
import torch
from torch import nn

torch.manual_seed(0)
augment = nn.Sequential(K.RandomHorizontalFlip(p=0.5), K.ColorJiggle(0.1, 0.1, 0.1, 0.1, p=0.5))
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
)
optimizer = torch.optim.NAdam(model.parameters(), 1e-2)
for _ in range(3):
    with torch.no_grad():
        x = augment(torch.rand(4, 3, 16, 16))
    loss = nn.functional.cross_entropy(model(x), torch.randint(3, (4,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{loss.item():.9f}")
