"""An encoder layer that may run as one kernel keeps its bits, however the program calls its forward."""

from __future__ import annotations

import io
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layerstep import DebugConsole

LINES = ("break **", "break layer.linear1", "record **", "catch exception in **", "break op:linear if False")
PADDED = torch.arange(9).expand(2, 9) > 5


class Layer(nn.TransformerEncoderLayer):
    def forward(self, src: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return super().forward(src * 2, *args, **kwargs)


class Net(nn.Module):
    def __init__(self, kind: type[nn.TransformerEncoderLayer]) -> None:
        super().__init__()
        self.layer = kind(16, 2, 32, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer.forward(x, src_key_padding_mask=PADDED)


def made(kind: type[nn.TransformerEncoderLayer]) -> tuple[Net, Tensor]:
    torch.manual_seed(0)
    return Net(kind).eval(), torch.randn(2, 9, 16)


@torch.no_grad()
def results(net: Net, x: Tensor) -> list[Tensor]:
    return [
        net(x),
        net.layer.forward(x, src_key_padding_mask=PADDED),
        net.layer(x, src_key_padding_mask=PADDED),
    ]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(map(torch.equal, left, right))


@pytest.mark.parametrize("kind", [nn.TransformerEncoderLayer, Layer])
def test_a_hook_alone_changes_the_bits(kind: type[nn.TransformerEncoderLayer]) -> None:
    """Else this file would test nothing."""
    net, x = made(kind)
    expected = results(net, x)
    net.layer.norm1.register_forward_hook(lambda *_: None)
    assert not same(expected, results(net, x))


@pytest.mark.parametrize("kind", [nn.TransformerEncoderLayer, Layer])
@pytest.mark.parametrize("line", LINES)
def test_the_kernel_computes(kind: type[nn.TransformerEncoderLayer], line: str) -> None:
    expected = results(*made(kind))
    net, x = made(kind)
    said = io.StringIO()
    before = nn.TransformerEncoderLayer.forward
    with DebugConsole(net, input=io.StringIO("continue\n" * 200), output=said) as console:
        console.execute(line)
        assert same(expected, results(net, x))
    assert "bug in layerstep" not in said.getvalue()
    assert nn.TransformerEncoderLayer.forward is before


def test_modules_inside_still_stop() -> None:
    net, x = made(nn.TransformerEncoderLayer)
    said = io.StringIO()
    with DebugConsole(net, input=io.StringIO("continue\n" * 9), output=said) as console, torch.no_grad():
        console.execute("break layer.linear1")
        net.layer.forward(x, src_key_padding_mask=PADDED)
    assert "layer.linear1  done" in said.getvalue()


def test_a_tapped_layer_can_be_scripted() -> None:
    net, x = made(nn.TransformerEncoderLayer)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        expected = torch.jit.script(net.layer)(x)
        with DebugConsole(net, input=io.StringIO("continue\n" * 9), output=io.StringIO()) as console:
            console.execute("break layer.linear1 if False")
            assert torch.equal(torch.jit.script(net.layer)(x), expected)
