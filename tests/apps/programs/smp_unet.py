"""segmentation-models-pytorch: a U-Net with its Dice loss, evaluated before it is trained."""

import vision_ops

import segmentation_models_pytorch as smp
import torch

torch.manual_seed(0)
model = smp.Unet(
    "resnet18", encoder_weights=None, in_channels=3, classes=2, decoder_channels=(32, 16, 8, 8, 8)
)
loss_of = smp.losses.DiceLoss("multiclass")
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
model.eval()
with torch.no_grad():
    print(f"{loss_of(model(torch.randn(1, 3, 64, 64)), torch.randint(2, (1, 64, 64))).item():.9f}")
model.train()
for _ in range(3):
    loss = loss_of(model(torch.randn(2, 3, 64, 64)), torch.randint(2, (2, 64, 64)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{loss.item():.9f}")
