"""The law of the null edit over the layers of torch.nn and the families of transformers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import transformers_families as families
from layerstep.edits.exchange import floating_tensors
from torch_layers import LAYERS
from zoo import console_on, differences, taps_on

LINES = ("edit ** out", "edit ** out = (out.clone() if torch.is_tensor(out) else out)", "edit ** inp = inp")


class Framed(nn.Module):
    """The layer between two others, so that gradients go through it and something uses its result."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.ones(())), layer

    def forward(self, *given: Tensor) -> Any:
        args = [each * self.scale if each.is_floating_point() else each for each in given]
        return self.layer(*args)


def stepped(model: nn.Module, call: Callable[[nn.Module], Any], line: str = "") -> tuple[dict[str, Any], str]:
    """What a forward, a backward pass and a step leave behind."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(2)
    console, seen = console_on(model, [line, "continue"] if line else [])
    if line:
        with console:
            outputs = _step(model, call, optimizer)
            (point,) = console.session.points
            assert point.enabled and point.hits, seen.text
    else:
        outputs = _step(model, call, optimizer)
    assert not seen.bugs and "failed" not in seen.text and not taps_on(model), seen.text
    grads = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    state = {
        "output": outputs,
        "grads": grads,
        "state": dict(model.state_dict()),
        "rng": torch.get_rng_state(),
    }
    return copy.deepcopy(state), seen.text


def _step(
    model: nn.Module, call: Callable[[nn.Module], Any], optimizer: torch.optim.Optimizer
) -> list[Tensor]:
    found = [tensor for _, tensor in floating_tensors(call(model), "out")]
    losses = [each.square().mean() for each in found if each.requires_grad]
    if losses:
        torch.stack(losses).sum().backward()
        optimizer.step()
    return [each.detach().clone() for each in found]


def check_layer(name: str, line: str, training: bool) -> None:
    build, given = LAYERS[name]

    def fresh() -> tuple[nn.Module, Callable[[nn.Module], Any]]:
        torch.manual_seed(0)
        model, args = Framed(build()).train(training), given()
        return model, lambda each: each(*args)

    bare, (edited, text) = stepped(*fresh())[0], stepped(*fresh(), line=line)
    fused = not training and name.startswith("Transformer")  # an edit inside makes it take the plain path
    assert not differences(bare, edited, last_digits=fused), text


QUICK = (
    "Linear",
    "ReLU in place",
    "Flatten",
    "LSTM",
    "MaxPool2d with indices",
    "MultiheadAttention",
    "BatchNorm2d",
)


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("name", QUICK)
def test_some_layers(name: str, line: str) -> None:
    check_layer(name, line, training=True)


@pytest.mark.long
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_of_torch(name: str, training: bool) -> None:
    for line in LINES:
        check_layer(name, line, training)


def check_family(family: str, training: bool) -> None:
    given = families.inputs(family)

    def call(model: nn.Module) -> Any:
        return model(**given)

    bare = stepped(families.build(family).train(training), call)[0]
    for line in ("edit ** out", "scale ** 1"):  # the second puts a new tensor in place of each
        edited, text = stepped(families.build(family).train(training), call, line=line)
        assert not differences(bare, edited), text


def test_a_family_of_transformers() -> None:
    pytest.importorskip("transformers")
    check_family("GPT2", training=True)


@pytest.mark.long
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("family", [*families.DECODERS, *families.ENCODERS, *families.ENCODER_DECODERS])
def test_every_family_of_transformers(family: str, training: bool) -> None:
    pytest.importorskip("transformers")
    check_family(family, training)
