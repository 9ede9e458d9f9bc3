"""The debugger of diffusion pipelines on a real one of `diffusers`, small and with random weights."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch


def test_a_pipeline_and_its_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    importlib.import_module("vision_ops")  # before diffusers, which imports torchvision
    from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

    from layerstep import DiffusionModelDebugger

    torch.manual_seed(0)
    unet = UNet2DModel(
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
    pipeline = DDPMPipeline(unet=unet, scheduler=scheduler)
    debugger = DiffusionModelDebugger()
    found = debugger.analyze_diffusion_pipeline(pipeline)
    assert found.total_parameters == sum(p.numel() for p in unet.parameters())
    assert found.others == {"scheduler": "DDPMScheduler"} and found.problems == ()

    scheduler.set_timesteps(3)
    latents = torch.randn(1, 1, 16, 16)
    for number, time in enumerate(scheduler.timesteps):
        with torch.no_grad():
            latents = scheduler.step(unet(latents, time).sample, time, latents).prev_sample
        assert debugger.monitor_diffusion_step(pipeline, number, latents).problem == ""
    assert [each.step for each in debugger.history] == [0, 1, 2]
    broken = debugger.monitor_diffusion_step(pipeline, 3, latents / 0)
    assert "Inf" in broken.problem
