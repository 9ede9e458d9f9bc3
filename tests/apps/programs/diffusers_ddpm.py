"""diffusers: a small UNet learns to predict noise, then a pipeline samples from it."""

import vision_ops

import torch
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from torch import nn

torch.manual_seed(0)
model = UNet2DModel(
    sample_size=16,
    in_channels=1,
    out_channels=1,
    block_out_channels=(16, 32),
    layers_per_block=1,
    norm_num_groups=8,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)
scheduler = DDPMScheduler(num_train_timesteps=50)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for _ in range(3):
    clean, noise = torch.randn(2, 1, 16, 16), torch.randn(2, 1, 16, 16)
    steps = torch.randint(0, 50, (2,))
    loss = nn.functional.mse_loss(model(scheduler.add_noise(clean, noise, steps), steps).sample, noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{loss.item():.9f}")
pipeline = DDPMPipeline(unet=model, scheduler=scheduler)
pipeline.set_progress_bar_config(disable=True)
image = pipeline(num_inference_steps=3, output_type="np", generator=torch.Generator().manual_seed(1)).images
print(f"{image.sum():.6f}")
