"""Looking changes nothing: random streams, buffers, versions, modes, and what a line did."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from layerstep._torch import is_tracing, module_call_code
from layerstep.module_paths.models import Models
from layerstep.side_effects import stream_memory
from layerstep.side_effects.guard import undisturbed
from layerstep.side_effects.marks import Baseline
from layerstep.side_effects.random_streams import RandomState
from layerstep.side_effects.reachable import Reach
from layerstep.tensors.observing import checksum, observing


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))


@pytest.fixture
def models(model: nn.Module) -> Models:
    found = Models()
    found.add(model, "model")
    return found


@pytest.mark.parametrize(
    ("name", "draw"),
    [("torch", lambda: torch.rand(3)), ("random", random.random), ("numpy", lambda: np.random.rand(3))],
)
def test_a_stream_that_moved_is_put_back(models: Models, name: str, draw: Any) -> None:
    before = RandomState()
    with undisturbed(models, deep=False) as outcome:
        draw()
    assert before.changed() == []
    assert outcome.restored == [f"random streams ({name})"]


def test_a_normal_number_that_waits_in_numpys_stream_is_put_back() -> None:
    np.random.seed(0)
    np.random.normal()
    with_second = np.random.get_state()
    before = RandomState()
    second = np.random.normal()  # the other one of the pair: no word of the stream changes
    assert before.changed() == ["numpy"]
    before.restore()
    assert before.changed() == [] and np.random.normal() == second
    without = RandomState()
    np.random.set_state(with_second)  # as a program does that keeps its stream for a while
    assert without.changed() == ["numpy"]


def test_a_normal_number_that_waits_in_pythons_stream_is_put_back() -> None:
    random.gauss()
    before = RandomState()
    second = random.gauss()
    assert before.changed() == ["random"]
    before.restore()
    assert before.changed() == [] and random.gauss() == second


def test_states_are_read_from_memory_here() -> None:
    """Else they are asked for at each forward, which is right and slow."""
    assert stream_memory._can_read_python() and stream_memory._can_read_numpy()
    assert stream_memory._look_at_python() is not None and stream_memory._look_at_numpy() is not None


def test_numpys_stream_is_known_by_its_generator_too() -> None:
    first = np.random.get_bit_generator()
    before = RandomState()
    try:
        np.random.set_bit_generator(np.random.PCG64(3))
        other = RandomState()
        number = np.random.rand()
        assert other.changed() == before.changed() == ["numpy"]
        other.restore()
        assert np.random.rand() == number
        before.restore()
        assert np.random.get_bit_generator() is first and before.changed() == []
    finally:
        np.random.set_bit_generator(first)


def test_streams_are_put_back_even_if_the_line_fails(models: Models) -> None:
    before = RandomState()
    with pytest.raises(ZeroDivisionError), undisturbed(models, deep=True):
        torch.rand(3)
        _ = 1 / 0
    assert before.changed() == []


def test_buffers_of_called_modules_are_put_back(model: nn.Module, models: Models) -> None:
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with undisturbed(models, deep=True) as outcome:
        model(torch.randn(8, 4))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert "1.running_mean" in outcome.restored
    assert outcome.changed == []


def test_putting_back_does_not_break_a_graph_that_saved_the_buffers(model: nn.Module, models: Models) -> None:
    model.eval()
    loss = model(torch.randn(8, 4)).sum()
    model.train()
    with undisturbed(models, deep=True):
        model(torch.randn(8, 4))
    loss.backward()


def test_what_is_changed_on_purpose_stays_and_is_named(model: nn.Module, models: Models) -> None:
    with undisturbed(models, deep=True) as outcome, torch.no_grad():
        model[0].weight.zero_()
        model[1].running_mean.fill_(7)
    assert sorted(outcome.changed) == ["0.weight", "1.running_mean"]
    assert model[0].weight.abs().sum() == 0
    assert (model[1].running_mean == 7).all()


def test_a_gradient_that_a_line_made_is_named(model: nn.Module, models: Models) -> None:
    with undisturbed(models, deep=True) as outcome:
        model[0](torch.randn(2, 4)).sum().backward()
    assert sorted(outcome.changed) == ["0.bias.grad", "0.weight.grad"]


@pytest.mark.parametrize(
    "write",
    [
        lambda w: w.data.mul_(2),
        lambda w: w.detach().numpy().__setitem__(0, 9.0),
        lambda w: w.data.copy_(w.data.flip(0)),
        lambda w: w.data.copy_(w.data.flip(1)),
        lambda w: w.data[:2].copy_(w.data[:2].flip(0)),
    ],
)
def test_a_baseline_sees_writes_past_the_version_counter(
    model: nn.Module, models: Models, write: Any
) -> None:
    before = Baseline(models, Reach())
    assert before.changed() == []
    version = model[0].weight._version
    write(model[0].weight)
    assert model[0].weight._version == version
    assert before.changed() == ["0.weight"]


def test_a_baseline_takes_any_state() -> None:
    odd = nn.Module()
    odd.register_buffer("meta", torch.empty(3, device="meta"))
    odd.register_buffer("sparse", torch.eye(3).to_sparse())
    odd.register_buffer("empty", torch.empty(0))
    odd.register_buffer("flag", torch.tensor(True))
    odd.register_buffer("narrow", torch.ones(3, 3, dtype=torch.float16).t()[1:])
    odd.register_buffer("large", torch.arange(100_000))
    odd.lazy = nn.LazyLinear(3)
    models = Models()
    models.add(odd, "odd")
    before = Baseline(models, Reach())
    assert before.changed() == []
    for name in ("flag", "narrow", "large"):
        getattr(odd, name).data.zero_()
    assert before.changed() == ["odd.flag", "odd.narrow", "odd.large"]


def test_nobody_sees_the_debugger_compute() -> None:
    seen: list[str] = []

    class Spy(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x = torch.randn(4, 4, requires_grad=True)
    with Spy(), torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
        with observing():
            y = x @ x
        assert seen == []
        assert y.dtype is torch.float32 and not y.requires_grad
        _ = x @ x
    assert seen


def test_tracing_is_told_from_running(model: nn.Module) -> None:
    told: list[bool] = []

    class Asking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            told.append(is_tracing())
            return x + 1

    Asking()(torch.ones(1))
    torch.export.export(Asking(), (torch.ones(1),), strict=False)
    torch.fx.symbolic_trace(nn.Sequential(Asking()))
    assert told[0] is False and all(told[1:]) and len(told) >= 3


def test_the_private_names_are_still_there() -> None:
    """If torch renames what the stack is rebuilt from, this is the test to read first."""
    assert module_call_code.co_name == "_call_impl"
    assert {"self", "args", "kwargs"} <= {*module_call_code.co_varnames, *module_call_code.co_cellvars}
    assert "inner" in module_call_code.co_varnames
    for name in (
        "_current_graph_task_id",
        "_len_torch_dispatch_stack",
        "_is_cow_tensor",
        "_DisableFuncTorch",
    ):
        assert hasattr(torch._C, name), name


@pytest.mark.parametrize("size", [(), (0,), (1,), (1, 1), (3,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.complex64])
def test_a_checksum_is_of_the_values_whatever_the_strides_are(
    size: tuple[int, ...], dtype: torch.dtype
) -> None:
    """One element may have any stride: a gradient that was expanded has 0."""
    plain = torch.full(size, 3, dtype=dtype)
    expanded = torch.full((), 3, dtype=dtype).expand(size)
    strided = torch.full((40,), 3, dtype=dtype).as_strided(size, [7, 2][: len(size)], 1)
    assert checksum(plain) == checksum(expanded) == checksum(strided)
    if plain.numel():
        assert checksum(plain) != checksum(torch.full(size, 4, dtype=dtype))
