"""T5: the padding mask of the encoder is the wrong way round."""

from __future__ import annotations

import torch

from token_models import Encoder, train_classifier

NAMES = ("encoder.layers.0.self_attn",)


def fires() -> None:
    torch.manual_seed(0)
    train_classifier(Encoder("inverted"))


def silent() -> None:
    torch.manual_seed(0)
    train_classifier(Encoder())
