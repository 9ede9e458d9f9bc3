"""Layers of torch.nn with inputs that they take: what a law must hold for."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["LAYERS"]

Layer = tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]


def _rand(*shape: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.rand(*shape) * 0.8 + 0.1,)


def _several(*shapes: tuple[int, ...]) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: tuple(torch.rand(*shape) * 0.8 + 0.1 for shape in shapes)


def _labels(count: int, *shape: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(*shape).log_softmax(1), torch.randint(count, (shape[0], *shape[2:])))


_ACTIVATIONS = """
CELU ELU GELU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid Mish PReLU ReLU ReLU6 RReLU SELU
SiLU Sigmoid Softplus Softshrink Softsign Tanh Tanhshrink Identity Dropout AlphaDropout Flatten
FeatureAlphaDropout
"""
_LOSSES = "L1Loss MSELoss SmoothL1Loss HuberLoss BCELoss BCEWithLogitsLoss PoissonNLLLoss"
_IN_PLACE = """
ReLU ELU CELU SELU SiLU Mish Hardswish Hardsigmoid Hardtanh LeakyReLU ReLU6 RReLU Dropout
"""


def _in_place(name: str) -> Callable[[], nn.Module]:
    kind = getattr(nn, name)
    return lambda: kind(inplace=True)  # type: ignore[no-any-return]


LAYERS: dict[str, Layer] = {name: (getattr(nn, name), _rand(3, 4, 5)) for name in _ACTIVATIONS.split()}
LAYERS |= {f"{name} in place": (_in_place(name), _rand(3, 4)) for name in _IN_PLACE.split()}
LAYERS |= {name: (getattr(nn, name), _several((3, 4), (3, 4))) for name in _LOSSES.split()}
LAYERS |= {
    "Threshold": (lambda: nn.Threshold(0.3, 0.1), _rand(3, 4)),
    "Softmin": (lambda: nn.Softmin(-1), _rand(3, 4)),
    "Softmax": (lambda: nn.Softmax(-1), _rand(3, 4)),
    "LogSoftmax": (lambda: nn.LogSoftmax(-1), _rand(3, 4)),
    "KLDivLoss": (lambda: nn.KLDivLoss(reduction="batchmean"), _several((3, 4), (3, 4))),
    "GLU": (nn.GLU, _rand(3, 4)),
    "Softmax2d": (nn.Softmax2d, _rand(2, 3, 4, 4)),
    "Linear": (lambda: nn.Linear(4, 3), _rand(2, 5, 4)),
    "Bilinear": (lambda: nn.Bilinear(4, 3, 2), _several((2, 4), (2, 3))),
    "Embedding": (lambda: nn.Embedding(9, 4), lambda: (torch.randint(9, (2, 5)),)),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(9, 4), lambda: (torch.randint(9, (2, 5)),)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), _rand(3, 4)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4), _rand(3, 4, 5, 5)),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(2), _rand(3, 2, 3, 3, 3)),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(4, affine=True, track_running_stats=True), _rand(3, 4, 5)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(4), _rand(3, 4, 5, 5)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), _rand(3, 4, 5)),
    "LayerNorm": (lambda: nn.LayerNorm(4), _rand(3, 5, 4)),
    "RMSNorm": (lambda: nn.RMSNorm(4), _rand(3, 5, 4)),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(2), _rand(2, 4, 5, 5)),
    "CrossMapLRN2d": (lambda: nn.CrossMapLRN2d(2), _rand(2, 4, 5, 5)),
    "Dropout1d": (nn.Dropout1d, _rand(3, 4, 5)),
    "Dropout2d": (nn.Dropout2d, _rand(3, 4, 5, 5)),
    "Dropout3d": (nn.Dropout3d, _rand(3, 4, 2, 2, 2)),
    "Unflatten": (lambda: nn.Unflatten(1, (2, 2)), _rand(3, 4)),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), _rand(2, 4, 3, 3)),
    "PixelUnshuffle": (lambda: nn.PixelUnshuffle(2), _rand(2, 1, 4, 4)),
    "ChannelShuffle": (lambda: nn.ChannelShuffle(2), _rand(2, 4, 3, 3)),
    "Upsample": (lambda: nn.Upsample(scale_factor=2), _rand(2, 4, 3, 3)),
    "UpsamplingBilinear2d": (lambda: nn.UpsamplingBilinear2d(scale_factor=2), _rand(2, 4, 3, 3)),
    "Fold": (lambda: nn.Fold((4, 5), (2, 2)), _rand(1, 12, 12)),
    "Unfold": (lambda: nn.Unfold((2, 2)), _rand(1, 3, 4, 5)),
    "CosineSimilarity": (nn.CosineSimilarity, _several((3, 4), (3, 4))),
    "PairwiseDistance": (nn.PairwiseDistance, _several((3, 4), (3, 4))),
    "FractionalMaxPool2d": (lambda: nn.FractionalMaxPool2d(2, output_size=2), _rand(1, 2, 5, 5)),
    "MaxPool2d with indices": (lambda: nn.MaxPool2d(2, return_indices=True), _rand(1, 2, 4, 4)),
    "CrossEntropyLoss": (nn.CrossEntropyLoss, _labels(4, 3, 4)),
    "NLLLoss": (nn.NLLLoss, _labels(4, 3, 4)),
    "MultiMarginLoss": (nn.MultiMarginLoss, _labels(4, 3, 4)),
    "TripletMarginLoss": (nn.TripletMarginLoss, _several((3, 4), (3, 4), (3, 4))),
    "GaussianNLLLoss": (nn.GaussianNLLLoss, _several((3, 4), (3, 4), (3, 4))),
    "RNN": (lambda: nn.RNN(4, 3, num_layers=2), _rand(5, 2, 4)),
    "LSTM": (lambda: nn.LSTM(4, 3, bidirectional=True, dropout=0.2, num_layers=2), _rand(5, 2, 4)),
    "GRU": (lambda: nn.GRU(4, 3, batch_first=True), _rand(2, 5, 4)),
    "RNNCell": (lambda: nn.RNNCell(4, 3), _rand(2, 4)),
    "LSTMCell": (lambda: nn.LSTMCell(4, 3), _rand(2, 4)),
    "GRUCell": (lambda: nn.GRUCell(4, 3), _rand(2, 4)),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(4, 2), _several((5, 2, 4), (5, 2, 4), (5, 2, 4))),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(4, 2, 8), _rand(5, 2, 4)),
    "TransformerDecoderLayer": (lambda: nn.TransformerDecoderLayer(4, 2, 8), _several((5, 2, 4), (3, 2, 4))),
    "Transformer": (lambda: nn.Transformer(4, 2, 1, 1, 8, batch_first=True), _several((2, 5, 4), (2, 3, 4))),
}
for _dims, _shape in ((1, (2, 2, 8)), (2, (2, 2, 8, 8)), (3, (2, 2, 6, 6, 6))):
    for _name, _args in (
        ("Conv", (2, 4, 3)),
        ("ConvTranspose", (2, 4, 3)),
        ("MaxPool", (2,)),
        ("AvgPool", (2,)),
        ("AdaptiveAvgPool", (2,)),
        ("AdaptiveMaxPool", (2,)),
        ("ReflectionPad", (1,)),
        ("ReplicationPad", (1,)),
        ("ZeroPad", (1,)),
        ("ConstantPad", (1, 0.5)),
        ("CircularPad", (1,)),
        ("LPPool", (2, 2)),
    ):
        _kind = getattr(nn, f"{_name}{_dims}d")
        LAYERS[f"{_name}{_dims}d"] = (lambda kind=_kind, args=_args: kind(*args), _rand(*_shape))  # type: ignore[misc]
