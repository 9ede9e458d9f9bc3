"""Edits on compiled models: the model is eager meanwhile, or they act in the compiled code."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from zoo import console_on

X = torch.linspace(-1, 1, 32).view(4, 8)


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled() -> tuple[nn.Sequential, nn.Module, CompileCounterWithBackend, Tensor]:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    net = nn.Sequential(nn.Linear(8, 8), nn.GELU(), inner, nn.Linear(8, 2))
    counter = CompileCounterWithBackend("aot_eager")
    model = torch.compile(net, backend=counter)
    return net, model, counter, model(X).detach().clone()


@pytest.mark.parametrize(
    "line", ["edit 2.0 out * 0", "ablate 2", "skip 2", "scale 0 2", "steer 2.0 torch.ones(8)"]
)
def test_while_an_edit_is_set_the_model_is_eager_and_then_its_graphs_are_as_before(line: str) -> None:
    _, model, counter, base = compiled()
    console, seen = console_on(model, [line, "continue"])
    with console:
        edited = model(X)
        assert not torch.allclose(edited, base)
        console.session.prompt.run_line("undo all")
        assert torch.equal(model(X), base)
    assert torch.equal(model(X), base) and counter.frame_count == 1
    assert not seen.bugs


def test_a_weight_acts_in_the_compiled_code_and_undo_gives_the_bits_back() -> None:
    net, model, counter, base = compiled()
    off = 5 - net[3].bias[0].item()
    console, _ = console_on(model, ["tbreak 3 enter", "continue", "set 3.bias[0] = 5", "continue"])
    with console:
        model(X)
        assert torch.allclose(model(X)[:, 0], base[:, 0] + off, atol=1e-5)
        console.session.prompt.run_line("undo all")
        assert torch.equal(model(X), base)
    assert counter.frame_count == 1


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("ablate 2 --compiled", lambda net: net[3](torch.zeros(4, 8))),
        ("scale 2 3 --compiled", lambda net: net[3](net[:3](X) * 3)),
        ("steer 2 torch.ones(8) by 2 --compiled", lambda net: net[3](net[:3](X) + 2)),
    ],
)
def test_in_compiled_code_it_is_compiled_once_and_undo_finds_the_old_graph(line: str, wanted: object) -> None:
    net, model, counter, base = compiled()
    expected = wanted(net).detach()  # type: ignore[operator]
    console, seen = console_on(model, [line, "continue"])
    with console:
        assert torch.allclose(model(X), expected, atol=1e-6) and counter.frame_count == 2
        model(X)
        console.session.prompt.run_line("perturbed?")
        assert "acted 2 times" in seen.text
        console.session.prompt.run_line("undo all")
        assert torch.equal(model(X), base)
        console.session.prompt.run_line("redo")
        assert torch.allclose(model(X), expected, atol=1e-6)
    assert torch.equal(model(X), base) and counter.frame_count == 2
    assert "forward" not in vars(net[2]) and not seen.bugs


def test_another_factor_is_not_compiled_again_and_a_factor_of_one_changes_no_bit() -> None:
    _, model, counter, base = compiled()
    console, _ = console_on(model, ["scale 2 1 --compiled", "continue"])
    with console:
        assert torch.equal(model(X), base)
        console.session.prompt.run_line("undo")
        console.session.prompt.run_line("scale 2 0.5 --compiled")
        assert not torch.equal(model(X), base)
    assert counter.frame_count == 2


def test_copies_and_files_of_the_model_are_not_edited() -> None:
    net, model, _, base = compiled()
    console, _ = console_on(model, ["ablate 2 --compiled", "continue"])
    with console:
        model(X)
        file = io.BytesIO()
        torch.save(net, file)
        file.seek(0)
        for other in (torch.load(file, weights_only=False), copy.deepcopy(net)):
            assert torch.allclose(other(X), base, atol=1e-6)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("ablate 2 mean --compiled", "--compiled is for zeros of a whole module"),
        ("scale 2 3 --compiled for 1", "--compiled acts in every call, on all tokens"),
        ("scale * 3 --compiled", "--compiled takes one module"),
        ("whatif scale 2 3 --compiled", "a rerun is eager; leave --compiled out"),
        ("scale 2 torch.ones(8) --compiled", "torch.ones(8) is no number; --compiled takes one"),
    ],
)
def test_what_compiled_code_cannot_do_is_one_line(line: str, says: str) -> None:
    _, model, _, _ = compiled()
    console, seen = console_on(model, ["break 3", "continue", line, "delete", "continue"])
    with console:
        model(X)
    assert says in " ".join(seen.text.split()) and not seen.bugs


def test_a_model_that_is_not_compiled_takes_no_such_edit() -> None:
    console, seen = console_on(nn.Sequential(nn.Linear(8, 8)), ["scale 0 2 --compiled"])
    with console:
        pass
    assert "0 is not in a compiled model; leave --compiled out" in seen.text
