"""Dispatch modes of ours: they leave no key on, and kernels under them give the bits of the bare run."""

from __future__ import annotations

import contextlib
import io
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerstep import DebugConsole
from layerstep.calls.operations import Functions
from zoo import console_on, global_state

PYTHON_KEYS = (torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot)


def debug(model: nn.Module, *lines: str, output: io.StringIO | None = None) -> DebugConsole:
    text = "".join(f"{line}\n" for line in lines)
    return DebugConsole(model, input=io.StringIO(text), output=output or io.StringIO())


def left_on() -> bool:
    is_on = torch._C._dispatch_tls_is_dispatch_key_included
    return any(map(is_on, PYTHON_KEYS)) or torch._C._len_torch_dispatch_stack() > 0


@pytest.fixture(autouse=True)
def _keys_are_off() -> Iterator[None]:
    yield
    left = left_on()
    while torch._C._len_torch_dispatch_stack():
        torch._C._pop_torch_dispatch_stack(None)
    for key in PYTHON_KEYS:  # or else every later test would die of it
        torch._C._dispatch_tls_set_dispatch_key_included(key, False)
    assert not left
    assert torch.set_autocast_enabled.__module__ is None or "layerstep" not in str(
        torch.set_autocast_enabled.__module__
    )


class Inside(nn.Module):
    """Calls what is inside it in a scope of torch's."""

    def __init__(self, scope: str) -> None:
        super().__init__()
        self.scope = scope
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        inner: Callable[..., Any] = self.inner
        match self.scope:
            case "vmap":
                return torch.vmap(inner)(x)
            case "grad":
                return torch.vmap(torch.func.grad(lambda row: inner(row).sum()))(x)
            case "jvp":
                return torch.func.jvp(inner, (x,), (torch.ones_like(x),))[1]
            case "vjp":
                return torch.func.vjp(inner, x)[1](torch.ones_like(x))[0]
            case "inference":
                with torch.inference_mode():
                    return inner(x)
            case _:
                return inner(x)


LINES = (
    ("memory on", "continue"),
    ("memory on", "continue", "memory off", "continue"),
    ("memory 1", "continue", "continue"),
    ("watch --stop inner.0.weight", "continue"),
    ("watch --stop inner.0.weight", "into"),
    ("watch --stop inner.0.weight", "continue", "unwatch", "continue"),
    ("stepi", "continue"),
    ("stepi", "stepi", "detach"),
    ("stepi", "stepi", "stepi", "memory on", "finish"),
    ("leaks on", "continue"),
    ("catch nonfinite --every-op", "continue"),
    ("memory on", "watch --stop inner.0.weight", "stepi", "detach"),
)


AROUND = [(scope, contextlib.nullcontext) for scope in ("vmap", "grad", "jvp", "inference", "plain")]
AROUND += [("plain", torch.inference_mode), ("vmap", torch.inference_mode), ("vjp", torch.no_grad)]


@pytest.mark.parametrize(("scope", "around"), AROUND)
def test_no_dispatch_key_is_left_on(scope: str, around: Callable[[], Any]) -> None:
    for first, lines in itertools.product(
        ("break inner.0", "break inner.0 enter", "break Inside enter"), LINES
    ):
        torch.manual_seed(0)
        model, x = Inside(scope), torch.randn(2, 4)
        with around():
            bare = model(x)
        with debug(model, *lines, output=(out := io.StringIO())) as console:
            console.execute(first)
            for _ in range(2):
                with around():
                    seen = model(x)
                torch.randn(2)
        assert torch.equal(bare, seen), (first, lines)
        assert not left_on(), (first, lines)
        assert "a bug in" not in out.getvalue(), (first, lines)


def test_a_model_that_raises_leaves_no_key_on() -> None:
    class Raises(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("on purpose")

    for line in ("memory on", "watch --stop 0.weight", "catch nonfinite --every-op", "break 0 enter"):
        model = nn.Sequential(nn.Linear(2, 2), Raises())
        with debug(model, "stepi", "stepi", "continue") as console:
            console.execute(line)
            with torch.inference_mode(), pytest.raises(ValueError, match="on purpose"):
                model(torch.ones(1, 2))
            torch.randn(2)


def test_a_mode_of_the_users_sees_as_much_after_a_scope_in_which_ours_was_laid() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model, x = Inside("plain"), torch.randn(2, 4)
    counts = []
    for line in ("", "memory on"):
        with debug(model) as console:
            if line:
                console.execute(line)
            with torch.inference_mode():
                model(x)
            with FlopCounterMode(display=False) as counter:
                model(x)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


class Attends(nn.Module):
    """Operations that are made of others, or call others inside."""

    def __init__(self, kind: str, layout: str) -> None:
        super().__init__()
        self.kind, self.layout = kind, layout
        self.q = nn.Linear(8, 8)
        self.mha = nn.MultiheadAttention(8, 2, batch_first=True)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.lstm = nn.LSTM(8, 8)
        self.bilinear = nn.Bilinear(8, 8, 4)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x)
        if self.layout == "transposed":
            q = q.mT.contiguous().mT
        match self.kind:
            case "sdpa":
                return F.scaled_dot_product_attention(q[:, None], x[:, None], x[:, None], is_causal=True)
            case "cross":
                return self.mha(q, x, x)[0]
            case "encoder":
                return self.encoder(q)
            case "lstm":
                return self.lstm(q)[0]
            case "bilinear":
                return self.bilinear(q.float(), x)
            case "einsum":
                return torch.einsum("bij,bkj->bik", q, x)
            case "complex":
                return torch.linalg.pinv(torch.complex(q.float(), x)).abs()
            case _:
                return self.mha(q, q, q)[0]


SEEN_BY = (
    ("memory on",),
    ("watch --stop q.weight",),
    ("break Attends enter", *["stepi"] * 12),
    ("catch nonfinite --every-op",),
)


@pytest.mark.parametrize(
    "kind", ["sdpa", "cross", "self", "encoder", "lstm", "bilinear", "einsum", "complex"]
)
@pytest.mark.parametrize("guard", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
def test_kernels_under_a_mode_give_the_bits_of_the_bare_run(
    kind: str, guard: Callable[[], Any], autocast: bool, layout: str
) -> None:
    torch.manual_seed(3)
    model, x = Attends(kind, layout).eval(), torch.randn(2, 3, 8)

    def run() -> Tensor:
        with guard(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return model(x)

    bare = run()
    for first, *lines in SEEN_BY:
        with debug(model, *lines) as console:
            console.execute(first)
            seen = run()
        assert seen.dtype == bare.dtype, first
        assert torch.equal(seen, bare), first


class Sensitivity(nn.Module):
    """Gradients of single rows, by transforms."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner = nn.Linear(4, 4), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(torch.func.grad(lambda row: self.inner(row).sum()))(self.stem(x))


@pytest.mark.parametrize("step", ["stepi", "step op"])
def test_a_mode_laid_before_a_backward_pass_is_gone_after_the_run(step: str) -> None:
    """Torch puts back at the end of each node what lay before it, also what was taken out in the node."""
    model, text = Sensitivity(), io.StringIO()
    before = _modes()
    lines = io.StringIO(f"{step}\ncontinue\ncontinue\n")
    with DebugConsole(model, input=lines, output=text) as console:
        console.execute("tbreak stem")
        console.execute("break inner backward")
        model(torch.ones(2, 4))
    assert _modes() == before, text.getvalue()


def test_nothing_is_left_of_a_step_through_the_kernels_of_a_backward_pass() -> None:
    """Torch drops the mode at the end of each node. What we replaced for it is put back, too."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    own, text = torch.set_autocast_enabled, io.StringIO()
    lines = io.StringIO("stepi\nstepi\nstepi\ncontinue\n")
    with DebugConsole(model, input=lines, output=text) as console:
        console.execute("tbreak 1 backward")
        model(torch.ones(2, 4)).sum().backward()
    assert "aten" in text.getvalue() and torch.set_autocast_enabled is own, text.getvalue()


class Penalty(nn.Module):
    """Runs a backward pass in its forward; a hook of the program may raise in it."""

    def __init__(self, raises: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.raises = raises

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_() * 1
        x.register_hook(self.look)
        y = self.inner(x)
        with contextlib.suppress(ValueError):
            torch.autograd.grad(y.sum(), x, retain_graph=True)
        return y

    def look(self, gradient: Tensor) -> None:
        if self.raises:
            raise ValueError("of the program")


@pytest.mark.parametrize("raises", [False, True])
def test_nothing_is_left_of_a_mode_that_is_laid_in_a_backward_pass(raises: bool) -> None:
    """Torch drops it at the end of its node, and does not tell of the end of a pass that raises."""
    model, before, screen = Penalty(raises), global_state(), io.StringIO()
    console = debug(model, "break op:*", "continue", *["continue"] * 9, output=screen)
    console.execute("tbreak inner backward")
    with console:
        model(torch.ones(2, 4))
        assert "inner  backward done" in screen.getvalue()
        model(torch.ones(2, 4))
    assert "inner  F.linear  done  op  forward 2" in screen.getvalue(), screen.getvalue()
    assert global_state() == before


def _modes() -> int:
    return torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack()


class LinearThenAttention(nn.Module):
    """Computes something, then attends: called as a module, or past it."""

    def __init__(self, past_the_call: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.past_the_call = past_the_call

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        attend = self.attention.forward if self.past_the_call else self.attention
        return attend(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("past_the_call", [False, True])
@pytest.mark.parametrize("lines", [["detach"], ["delete", "continue"], ["continue"]])
def test_attention_keeps_its_kernel_after_a_stop_at_an_op_before_it(
    past_the_call: bool, lines: list[str]
) -> None:
    """The mode cannot leave from inside its own handler: it still lies where the attention runs."""
    torch.manual_seed(0)
    model, x, before = LinearThenAttention(past_the_call).eval(), torch.randn(2, 3, 8), global_state()
    with torch.no_grad():
        bare = model(x)
    screen = io.StringIO()
    console = debug(model, *lines, output=screen)
    console.execute("break op:linear")
    with console, torch.no_grad():
        seen = model(x)
    assert "first  F.linear  done" in screen.getvalue()
    assert torch.equal(bare, seen) and global_state() == before


def test_a_thread_that_ends_under_a_mode_leaves_the_forward_of_attention_as_it_was() -> None:
    mode, before = Functions(lambda func, args, kwargs: func(*args, **kwargs)), global_state()
    thread = threading.Thread(target=mode.push_here)
    thread.start()
    thread.join()
    assert global_state()["forwards"] != before["forwards"]
    del thread, mode
    deadline = time.monotonic() + 100
    while global_state() != before and time.monotonic() < deadline:
        time.sleep(0.01)  # torch lets go of the mode when the thread is gone, shortly after the join
    assert global_state() == before


def test_points_that_are_taken_back_at_the_entry_lay_no_mode() -> None:
    lying: list[int] = []
    model = nn.Sequential(nn.Identity())
    nn.Module.register_forward_hook(model[0], lambda *_: lying.append(torch._C._len_torch_function_stack()))
    for last in ("delete", "detach"):
        console = debug(model, last, "continue")
        console.breakpoint("Sequential", "enter")
        console.execute("break op:*")
        with console:
            model(torch.ones(1))
    assert lying == [0, 0]


class Tangent(nn.Module):
    """The derivative of a part along one direction."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        value, tangent = torch.func.jvp(self.inner, (x,), (torch.ones_like(x),))
        return value + tangent


@pytest.mark.parametrize("line", ["again", "attention", "grad check", "stability", "flops"])
def test_a_rerun_at_a_kernel_in_jvp_is_refused_in_a_line(line: str) -> None:
    """Torch has taken the transform off its stack there, and a rerun was a segmentation fault."""

    model = Tangent(nn.Linear(4, 4))
    x = torch.ones(2, 4)
    console, seen = console_on(
        model, ["break Tangent enter", "continue", "stepi", "stepi", line, "delete", "continue"]
    )
    assert torch.equal(console.run(x), model(x))
    assert not seen.bugs and "jvp" in seen.text


@pytest.mark.parametrize(
    "line, answer",
    [
        ("architecture", "FLOP"),
        ("model(torch.ones(2, 4)).shape", "[2, 4]"),
        ("probe zero-input", "called a copy"),
    ],
)
def test_a_model_that_uses_jvp_can_be_run_at_a_kernel(line: str, answer: str) -> None:
    """Below autograd a zero tangent has no memory: a segmentation fault."""
    model = nn.Sequential(Tangent(nn.LayerNorm(4)), nn.Linear(4, 4))
    x = torch.ones(2, 4)
    console, seen = console_on(model, ["break 1 enter", "continue", "stepi", line, "delete", "continue"])
    assert torch.equal(console.run(x), model(x))
    assert not seen.bugs and answer in seen.text


@pytest.mark.parametrize(
    "line", ["whatif scale inner 2", "lockstep model model", "patch --sweep inner from 0 metric 1"]
)
def test_no_forward_runs_beside_a_transform(line: str) -> None:
    model = Inside("vmap")
    console, seen = console_on(model, ["break inner", "continue", line, "continue"])
    console.run(torch.ones(2, 4))
    assert not seen.bugs and "in a transform of torch.func" in " ".join(seen.text.split()), seen.text


class _CastsInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.cast = nn.Identity(), nn.Linear(8, 8)
        self.fused = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        with torch.autocast("cpu", torch.bfloat16):
            y = self.cast(x)
        return self.fused(x + y)


def test_a_mode_that_is_stopped_in_knows_that_an_autocast_block_has_ended() -> None:
    """Torch puts it back after its handler: it runs the next kernels, one of which is fused."""

    def output(lines: list[str]) -> Tensor:
        torch.manual_seed(0)
        model = _CastsInside().eval()
        console = DebugConsole(model, commands=lines, output=io.StringIO())
        with console, torch.no_grad():
            return model(torch.ones(1, 3, 8))

    bare = output([])
    assert torch.equal(bare, output(["break first", "continue", "delete", "stepi", "continue"]))


@pytest.mark.parametrize("line", ["memory on", "watch --stop 0.weight", "catch nonfinite --every-op"])
def test_a_mode_lies_once_however_often_the_run_stops(line: str) -> None:
    """At a stop modes are aside. One that was pushed again there would lie twice, and so on at each stop."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    console = DebugConsole(
        model, commands=["break **", "continue", line, *["continue"] * 40], output=io.StringIO()
    )
    depths = []
    with console:
        for _ in range(4):
            model(torch.ones(1, 4)).sum().backward()
            depths.append(torch._C._len_torch_dispatch_stack())
    assert max(depths) <= 1 and not torch._C._len_torch_dispatch_stack()
