"""MONAI: a 3-D U-Net with a sliding window over a volume."""

import torch
from monai.inferers import sliding_window_inference
from monai.losses import DiceLoss
from monai.networks.nets import UNet

torch.manual_seed(0)
model = UNet(spatial_dims=3, in_channels=1, out_channels=2, channels=(4, 8), strides=(2,), num_res_units=1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loss_of = DiceLoss(to_onehot_y=True, softmax=True)
for _ in range(3):
    loss = loss_of(model(torch.randn(1, 1, 16, 16, 16)), torch.randint(2, (1, 1, 16, 16, 16)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{loss.item():.9f}")
with torch.no_grad():
    print(f"{sliding_window_inference(torch.ones(1, 1, 24, 24, 24), 16, 2, model).sum().item():.6f}")
