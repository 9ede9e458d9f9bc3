"""The models that are measured: a transformer, a convolutional net, many tiny modules, and a huge tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Case", "all_cases", "huge_model"]

HUGE_BLOCKS = 1250
"""Of eight modules each: 10,000 modules."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model, an input, and the path of a module in its middle."""

    name: str
    model: nn.Module
    input: Tensor
    path: str
    is_real: bool = True
    """False for the tiny modules, where the overhead is nearly all there is."""
    returns_tensors: bool = True
    """Does each module return one tensor?"""

    def run(self) -> Any:
        return self.model(self.input)

    def calls(self) -> int:
        """How many modules one forward calls."""
        count = 0

        def one_more(*_: Any) -> None:
            nonlocal count
            count += 1

        handle = nn.modules.module.register_module_forward_pre_hook(one_more)
        try:
            self.run()
        finally:
            handle.remove()
        return count


class Residual(nn.Module):
    """ResNet's basic block, with the in-place ReLUs that make hooks delicate."""

    def __init__(self, inside: int, outside: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample = (
            nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
            if stride > 1 or inside != outside
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        kept = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.bn2(self.conv2(x))
        x += kept
        out: Tensor = self.relu(x)
        return out


class ResNet(nn.Sequential):
    """ResNet-18 in shape: a stem, four stages of two blocks, a head."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        for stage in range(4):
            outside = width << stage
            inside = outside // 2 if stage else width
            first = Residual(inside, outside, stride=2 if stage else 1)
            self.add_module(f"layer{stage + 1}", nn.Sequential(first, Residual(outside, outside, stride=1)))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(width * 8, classes)


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=1000,
        n_positions=64,
        n_embd=256,
        n_layer=4,
        n_head=4,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    model: nn.Module = GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
    return model


def all_cases() -> list[Case]:
    """The models of the overhead tables; seeded, in eval mode."""
    torch.manual_seed(0)
    tiny = nn.Sequential(*(nn.Linear(8, 8) for _ in range(200)))
    cases = [
        Case(
            "GPT-2, 4 layers of 256, 64 tokens",
            _gpt2(),
            torch.randint(1000, (1, 64)),
            "transformer.h.1.mlp",
            returns_tensors=False,
        ),
        Case("ResNet-18, 64×64", ResNet(64, 1000), torch.randn(1, 3, 64, 64), "layer2.0.conv1"),
        Case("200 × Linear(8, 8)", tiny, torch.randn(1, 8), "100", is_real=False),
    ]
    for case in cases:
        case.model.eval()
    return cases


def huge_model(*, alike: bool) -> nn.Module:
    """10,000 modules in `layers.N.M`; unless they are alike, no two neighbours are of one shape."""

    def block(index: int) -> nn.Module:
        return nn.Sequential(*(nn.Linear(4, 4 if alike else 4 + (index + part) % 7) for part in range(7)))

    model = nn.Module()
    model.layers = nn.ModuleList(block(index) for index in range(HUGE_BLOCKS))
    return model
