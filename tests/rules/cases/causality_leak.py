"""T1: the causal mask is off by one, so that each place sees the token it is to predict."""

from __future__ import annotations

import torch

from token_models import TinyGPT, train_gpt

NAMES = ("blocks.0.attention",)


def fires() -> None:
    torch.manual_seed(0)
    train_gpt(TinyGPT(ahead=1))


def silent() -> None:
    torch.manual_seed(0)
    train_gpt(TinyGPT())
