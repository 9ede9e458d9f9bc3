"""torchvision: a ResNet on images whose transform runs a module; a DataLoader worker; mixed precision."""

import vision_ops

import torch
from torch import nn
from torchvision import models
from torchvision.transforms import v2

augment = v2.Compose([v2.RandomHorizontalFlip(), v2.Normalize([0.5] * 3, [0.5] * 3)])
blur = nn.Conv2d(3, 3, 3, padding=1, bias=False).requires_grad_(False)


class Images(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int):
        torch.manual_seed(index)
        return augment(blur(torch.randn(3, 32, 32))), index % 4


def main() -> None:
    torch.manual_seed(0)
    model = models.resnet18(num_classes=4)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for workers in (0, 1):
        for x, y in torch.utils.data.DataLoader(Images(), batch_size=4, num_workers=workers):
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(f"{loss.item():.9f}")


if __name__ == "__main__":
    torch.manual_seed(1)
    nn.init.normal_(blur.weight)
    main()
