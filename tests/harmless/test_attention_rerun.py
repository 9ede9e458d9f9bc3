"""`attention` runs a module once more, and the run does not notice: bits, streams, state, hooks, modes."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from zoo import console_on, differences, entry_named, global_state, hook_count, play, taps_on

LOOK = ("attention", "attention --head 0", "attention --tokens list('abcdefgh')")
CASES = [
    ("gpt2", "train", "h.1.attn"),
    ("gpt2", "eval", "h.0.attn.c_proj"),
    ("gpt2", "frozen", "h.1.attn"),
    ("bert", "train", "layer.0.attention.self"),
    ("bert", "eval", "layer.1.attention"),
    ("encoder", "train", "layers.1.self_attn"),
    ("encoder", "frozen", "layers.0"),
    ("encoder_nested", "frozen", "layers.0"),
]


@pytest.mark.parametrize("phase", ["exit", "enter"])
@pytest.mark.parametrize(("name", "mode", "path"), CASES)
def test_a_run_is_the_same_with_and_without(name: str, mode: str, path: str, phase: str) -> None:
    entry = entry_named(name)
    bare = play(entry, mode)
    before = global_state()
    lines = [f"break {path} {phase}", "continue", *[*LOOK, "perturbed?", "continue"] * 2]
    run = play(entry, mode, lines)
    assert differences(bare.state, run.state) == []
    assert run.seen.bugs == []
    assert not run.seen.is_perturbed
    assert "heads ×" in run.seen.text or name == "encoder_nested"
    assert not taps_on(run.model) and hook_count(run.model) == hook_count(bare.model)
    assert global_state() == before


class Stateful(nn.Module):
    """Attention that writes wherever a forward can."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)
        self.norm = nn.BatchNorm1d(5)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))
        self.memory = torch.zeros(5, 5)
        self.last: Tensor | None = None
        self.history: list[Tensor] = []
        self.recent: deque[int] = deque(maxlen=2)
        self.counts = {"forward": 0}

    def forward(self, x: Tensor) -> Tensor:
        print("running")
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        weights = self.drop((q @ k.mT).softmax(-1) + 0 * torch.rand(()))
        self.calls += 1
        self.memory += weights.detach()[0]
        self.last = weights
        self.history.append(weights)
        self.recent.append(len(self.history))
        self.counts["forward"] += 1
        self.fresh = weights.detach()
        return weights @ v


def _train(lines: list[str]) -> tuple[Stateful, dict[str, Any], str]:
    torch.manual_seed(0)
    inner = Stateful()
    model = nn.Sequential(nn.Linear(4, 4), inner, nn.Linear(4, 4))
    hooked: list[Tensor] = []
    inner.drop.register_forward_hook(lambda module, args, output: hooked.append(output))
    inner.register_forward_pre_hook(lambda module, args: hooked.append(args[0]))
    x = torch.randn(3, 5, 4)
    console, record = console_on(model, lines)
    with console:
        out = model(x)
        out.sum().backward()
    state = {
        "out": out.detach(),
        "grads": {name: parameter.grad for name, parameter in model.named_parameters()},
        "buffers": dict(model.named_buffers()),
        "memory": inner.memory,
        "memory version": inner.memory._version,
        "history": [weights.detach() for weights in inner.history],
        "recent": list(inner.recent),
        "counts": inner.counts,
        "hooked": [value.detach() for value in hooked],
        "attributes": sorted(vars(inner)),
        "rng": torch.get_rng_state(),
    }
    return inner, state, record.text


def test_what_a_forward_writes_is_written_once(capsys: pytest.CaptureFixture[str]) -> None:
    _, bare, _ = _train([])
    printed = capsys.readouterr().out
    inner, state, text = _train(["break 1", "continue", *LOOK, "detach"])
    assert differences(bare, state) == []
    assert "not checked with its output, which had dropout" in " ".join(text.split())
    assert capsys.readouterr().out == printed == "running\n"
    assert inner.last is inner.history[0] and inner.last.grad_fn is not None


def test_before_the_module_has_run_nothing_of_it_is_there() -> None:
    _, bare, _ = _train([])
    _, state, text = _train(["break 1 enter", "continue", *LOOK, "detach"])
    assert "1 heads × 5 queries" in " ".join(text.split())
    assert differences(bare, state) == []


def test_autocast_does_not_keep_weights_that_were_cast_without_gradients() -> None:
    def gradients(lines: list[str]) -> dict[str, Any]:
        torch.manual_seed(0)
        model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        x = torch.randn(2, 5, 8)
        console, record = console_on(model, lines)
        with console, torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).float().square().sum() + model(x).float().sum()
        loss.backward()
        assert not lines or "heads ×" in record.text
        return {name: parameter.grad for name, parameter in model.named_parameters()}

    stops = ["break self_attn enter", "continue", "attention", "continue", "attention", "detach"]
    assert differences(gradients([]), gradients(stops)) == []


def test_a_mode_of_the_users_sees_nothing_of_it() -> None:
    class Counting(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(getattr(func, "__name__", ""))
            return func(*args, **(kwargs or {}))

    class Small(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x, x, x)

    def names(lines: list[str]) -> tuple[list[str], str]:
        model = nn.Sequential(Small())
        x = torch.ones(1, 2, 3, 4)
        console, record = console_on(model, lines)
        with console, Counting() as mode:
            model(x)
        return mode.seen, record.text

    bare, _ = names([])
    seen, text = names(["break 0", "continue", "attention", "detach"])
    assert "heads ×" in text
    assert seen == bare


def test_a_default_device_acts_on_the_rerun() -> None:
    class Makes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            made = torch.zeros(3, 3)
            return (made + x).softmax(-1) @ x

    model = nn.Sequential(Makes())
    console, record = console_on(model, ["break 0", "continue", "attention", "detach"])
    with torch.device("cpu"), console:
        model(torch.randn(2, 3, 3))
    assert "bit for bit" in " ".join(record.text.split())


class Keys:
    """A cache as people write it."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []
        self.all = torch.zeros(1, 8, 4)
        self.length = 0

    def append(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        return torch.cat(self.seen, 1)

    def write(self, x: Tensor) -> Tensor:
        self.all[:, self.length : self.length + 3] = x
        self.length += 3
        return self.all[:, : self.length]

    def write_at_start(self, x: Tensor) -> Tensor:
        self.all[:, :3] = x
        return self.all[:, :3]


class Caching(nn.Module):
    def __init__(self, way: str, own: bool) -> None:
        super().__init__()
        self.way = way
        if own:
            self.rows: list[Tensor] = []

    def forward(self, x: Tensor, cache: Keys | None = None) -> Tensor:
        if cache is None:
            self.rows.append(x)
            keys = torch.cat(self.rows, 1)
        else:
            keys = getattr(cache, self.way)(x)
        return (x @ keys.mT).softmax(-1) @ keys


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("append", "not to be trusted if an input is a cache"),
        ("write", "not to be trusted if an input is a cache"),
        ("write_at_start", "bit for bit"),
        ("", "not to be trusted if rows is a cache"),
    ],
)
def test_a_cache_of_the_users_own_is_untouched_and_never_believed(way: str, said: str) -> None:
    """Keys that are there twice give the same output: what the check cannot see has to be said."""
    cache, x = Keys(), torch.randn(1, 3, 4)
    model = Caching(way, own=not way)
    console, record = console_on(model, ["break Caching", "continue", "attention", "detach"])
    with console:
        model(x, cache) if way else model(x)
    assert said in " ".join(record.text.split())
    assert (len(cache.seen), cache.length) == (int(way == "append"), 3 * (way == "write"))
    assert cache.all._version == int(way.startswith("write"))
    assert way or (model.rows[0] is x and len(model.rows) == 1)
