"""T6: a transformer without positions."""

from __future__ import annotations

import torch

from token_models import Encoder, TinyGPT, train_classifier, train_gpt

NAMES = ("embedding",)


def fires() -> None:
    torch.manual_seed(0)
    train_gpt(TinyGPT(layers=1, positions=False))


def silent() -> None:
    """Two causal layers tell the order by their mask; an encoder has positions."""
    torch.manual_seed(0)
    train_gpt(TinyGPT(layers=2, positions=False))
    train_classifier(Encoder())
