"""A training loop that skips a batch it cannot use, and dies of another mistake in its backward pass."""

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.head = nn.Linear(8 * 4 * 4, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.pool(self.conv(images).relu())
        return self.head(features.flatten(1))


torch.manual_seed(0)
model = Classifier()
batches = [torch.rand(2, 3, 16, 16), torch.rand(2, 16, 16, 3), torch.rand(2, 3, 16, 16)]
for number, images in enumerate(batches):
    try:
        logits = model(images)
    except RuntimeError:
        print("batch", number, "skipped")
        continue
    loss = nn.functional.cross_entropy(logits, torch.tensor([1, 2]), reduction="none")
    if number == 2:
        loss.backward()
    print("batch", number, "done")
