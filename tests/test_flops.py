"""FLOPs: those of torch's own counter, by module, forward and backward, without a trace in the run."""

from __future__ import annotations

import io
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from layerstep import DebugConsole
from layerstep.engine.flops import count_flops
from layerstep.errors import UserError
from layerstep.render.screen import to_text
from zoo import ZOO, Entry, console_on, entry_named, feeding, seed, tensors_of

NOT_AGAIN = ("checkpoint_reentrant", "data_parallel")
"""Torch refuses `autograd.grad` through the first and a call with other parameters of the second."""
KINDS = [entry for entry in ZOO if entry.name not in NOT_AGAIN]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_sum_is_that_of_torchs_counter(kind: Entry) -> None:
    seed(0)
    model = kind.build().eval()
    seed(1)
    with feeding(kind, "eval") as (args, kwargs):
        model(*args, **kwargs)  # lazy layers have no parameters before
        console, seen = console_on(model, [])
        found = count_flops(console.session, model, args=args, kwargs=kwargs, backward=True)
        gradients = [parameter.grad for parameter in model.parameters()]
        with warnings.catch_warnings(), FlopCounterMode(display=False) as counter:
            warnings.simplefilter("ignore")  # its global hooks, on a compiled model
            ends = [tensor for tensor in tensors_of(model(*args, **kwargs)) if tensor.requires_grad]
            torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
    assert found.total == counter.get_total_flops() > 0
    assert gradients == [None] * len(gradients), "a count must add to no gradient"
    assert not seen.bugs


def test_each_module_has_its_own() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    console, _ = console_on(model, [])
    x = torch.randn(4, 6)
    found = count_flops(console.session, model, args=(x,), kwargs={}, backward=True)
    assert found.forward == {"0": 2 * 4 * 6 * 8, "2": 2 * 4 * 8 * 3}
    assert found.backward["0"] == found.forward["0"], "the input needs no gradient"
    assert found.backward["2"] == 2 * found.forward["2"]
    assert not found.uncounted


class Fourier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft(self.fc(x)).abs().cumsum(-1).sort().values.relu()


def test_what_has_no_formula_is_listed() -> None:
    model = Fourier()
    console, _ = console_on(model, [])
    found = count_flops(console.session, model, args=(torch.randn(2, 8),), kwargs={}, backward=False)
    assert {"_fft_r2c", "cumsum", "sort"} <= set(found.uncounted)
    assert not {"relu", "abs", "t", "view"} & set(found.uncounted)
    assert not found.has_backward and not found.backward


def test_the_screen_at_a_stop() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    lines = ["break 1", "continue", "flops", "flops 0", "perturbed?", "continue"]
    output = io.StringIO()
    fired = []
    model[0].weight.register_hook(lambda gradient: fired.append(gradient))
    with DebugConsole(model, commands=lines, output=output):
        state = torch.get_rng_state()
        model(torch.randn(4, 6).requires_grad_()).sum()
    text = output.getvalue()
    assert "all of 0" in text and "a multiply and an add count as two" in text
    assert "untouched" in text and not fired
    torch.set_rng_state(state)


def test_without_gradients_only_the_forward_counts() -> None:
    model = nn.Sequential(nn.Linear(6, 8))
    output = io.StringIO()
    with (
        DebugConsole(model, commands=["break 0", "continue", "flops", "continue"], output=output),
        torch.no_grad(),
    ):
        model(torch.randn(4, 6))
    assert "forward only" in output.getvalue()


def test_outside_of_a_call_it_says_what_to_do() -> None:
    console = DebugConsole(nn.Linear(2, 2), output=io.StringIO())
    assert "no call of a model is running here" in to_text(console.execute("flops"))  # type: ignore[arg-type]


def test_what_cannot_run_again_says_so() -> None:
    kind = entry_named("checkpoint_reentrant")
    seed(0)
    model = kind.build()
    console, _ = console_on(model, [])
    with feeding(kind, "train") as (args, kwargs), pytest.raises(UserError, match="cannot be run again"):
        count_flops(console.session, model, args=args, kwargs=kwargs, backward=True)
