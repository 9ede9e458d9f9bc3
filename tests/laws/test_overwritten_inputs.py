"""An input that a layer overwrites in place is shown as it was, or said to be overwritten."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from zoo import Seen, console_on


class Adds(nn.Module):
    def forward(self, x: Tensor, *, more: Tensor | None = None) -> Tensor:
        x += 5
        return x


class Wraps(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.lin(x))  # type: ignore[no-any-return]


LAYERS = {
    "relu": lambda: nn.ReLU(inplace=True),
    "dropout": lambda: nn.Dropout(0.5, inplace=True),
    "own": Adds,
    "inside": lambda: nn.Sequential(nn.SiLU(inplace=True)),
}


def run(
    layer: Any, *lines: str, inference: bool = False, stop: str | list[str] = "break layer"
) -> tuple[Seen, Tensor]:
    torch.manual_seed(0)
    model = Wraps(layer)
    first = [stop] if isinstance(stop, str) else stop
    console, seen = console_on(model, [*first, "continue", *lines, "delete", "continue"])
    x = torch.randn(3, 4)
    with console, torch.inference_mode(inference):
        output = model(x)
    assert not seen.bugs
    return seen, output


def bare(layer: Any) -> Tensor:
    torch.manual_seed(0)
    model = Wraps(layer)
    return model(torch.randn(3, 4))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("inference", [False, True])
def test_the_stop_and_the_looks_say_that_it_was_overwritten(name: str, inference: bool) -> None:
    seen, output = run(LAYERS[name](), "inspect inp", "stats inp", "compare inp out", inference=inference)
    words = " ".join(seen.text.split())
    assert words.count("inp was overwritten in place by the call: shown as it was before") == 4
    assert "equal" not in words.rpartition("compare inp out")[2].partition("delete")[0].split("differs")[0]
    assert torch.equal(output, bare(LAYERS[name]()))


def test_the_values_before_the_call_are_shown() -> None:
    seen, _ = run(nn.ReLU(inplace=True))
    line = next(line for line in seen.text.splitlines() if line.startswith("  inp"))
    out = next(line for line in seen.text.splitlines() if line.startswith("  out"))
    assert "[-" in line and "[0," in out


class HandsOn(nn.Module):
    """Gives its input to a layer that overwrites it, after a write of its own or not."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.inner = Adds()
        self.first = first

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            x.mul_(0).add_(self.first)
        return self.inner(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("first", [0, 100])
def test_a_layer_inside_that_gets_the_same_tensor_has_its_own_values_before(first: int) -> None:
    seen, output = run(HandsOn(first), "inspect inp", stop=["break layer", "break layer.inner"])
    words = " ".join(seen.text.split())
    assert "inp was overwritten in place by the call: shown as it was before" in words
    line = next(line for line in seen.text.splitlines() if line.startswith("  inp"))
    assert ("100" in line) == bool(first) and "105" not in line
    assert torch.equal(output, bare(HandsOn(first)))


@pytest.mark.parametrize("layer", [nn.ReLU(), nn.Identity(), nn.Flatten(0), nn.Dropout(0.0)], ids=str)
def test_what_is_not_overwritten_is_not_said_to_be(layer: nn.Module) -> None:
    seen, _ = run(layer, "inspect inp", "stats inp", "compare inp inp")
    assert "was overwritten" not in seen.text


def test_a_large_input_is_named_without_its_values() -> None:
    lines = ["config copy_input_bytes 1", "break layer"]
    seen, output = run(nn.ReLU(inplace=True), "compare inp out", stop=lines)
    words = " ".join(seen.text.split())
    assert words.count("inp was overwritten in place: these are its values after the call") == 2
    assert torch.equal(output, bare(nn.ReLU(inplace=True)))


def test_a_step_over_an_in_place_layer_tells() -> None:
    seen, _ = run(nn.ReLU(inplace=True), "step", stop="break lin")
    assert "overwritten in place" in seen.text


def test_nothing_is_kept_once_nothing_is_armed() -> None:
    model = Wraps(nn.ReLU(inplace=True))
    console, _ = console_on(model, ["break layer", "continue", "delete", "continue"])
    with console:
        model(torch.ones(3, 4))
        model(torch.ones(3, 4))
        assert not console.session.overwritten_inputs._noted
