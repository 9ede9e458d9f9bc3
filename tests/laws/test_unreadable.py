"""Tensors that are not plain memory: no look kills the run, pins a storage or calls them finite unread."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quick_python
from layerstep import DebugConsole

NAN = float("nan")
LOOKS = (
    "where",
    "why out",
    "stats out",
    "stats --params",
    "inspect out",
    "hist out",
    "heatmap out",
    "anomalies",
    "activations",
    "weights",
    "stability",
    "shadow fp64",
    "ops",
    "ops --aten",
    "flops",
    "attention",
    "grad check",
    "compare out inp",
    "memory",
    "dump {folder}/x.lscore",
    "save-tensor out {folder}/x.npy",
    "perturbed?",
    "stepi",
)
ARMED = (
    "catch nonfinite",
    "catch nan param",
    "catch nonfinite --every-op",
    "watch --stop 0.weight",
    "record ** --tensors",
    "memory on",
    "grad record",
    "profile on",
)

PROLOGUE = """
import io, sys, torch, weakref
from torch import nn
from unittest.mock import Mock
from layerstep import DebugConsole

def tried(model, run, armed, looks):
    stops = [("break **", [each] * 3) for each in looks]
    for first, lines in [*((each, ["continue"] * 3) for each in armed), *stops]:
        out, text = io.StringIO(), "".join(f"{line}\\n" for line in lines)
        with DebugConsole(model, input=io.StringIO(text), output=out) as console:
            console.execute(first)
            run()
        assert "a bug in" not in out.getvalue(), (first, lines, out.getvalue())
    print("alive")
"""


def in_a_process(code: str, folder: Any) -> None:
    """Run a program that may die of a segmentation fault."""
    looks = [look.format(folder=folder) for look in LOOKS]
    text = PROLOGUE + f"armed, looks = {ARMED!r}, {looks!r}\n" + textwrap.dedent(code)
    done = quick_python.run(["-W", "ignore", "-c", text])
    assert (done.returncode, done.stdout[-6:]) == (0, "alive\n"), done.stderr[-1500:] + done.stdout[-500:]


def test_values_that_only_say_that_they_are_tensors(tmp_path: Any) -> None:
    in_a_process(
        """
        class Takes(nn.Module):
            def forward(self, x, other):
                return x
        x = torch.ones(3)
        for other in (weakref.proxy(x), Mock(spec=torch.Tensor)):
            assert isinstance(other, torch.Tensor)
            part, looks = Takes(), ("where", "inp", "stats", "why out", "ops")
            tried(part, lambda: part(x, other), ("catch nonfinite", "memory on"), looks)
        """,
        tmp_path,
    )


def test_wrapper_subclasses(tmp_path: Any) -> None:
    in_a_process(
        """
        from torch.testing._internal.two_tensor import TwoTensor
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        model[0].weight = nn.Parameter(TwoTensor(torch.ones(4, 4), torch.ones(4, 4)))
        x = TwoTensor(torch.ones(2, 4), torch.ones(2, 4))
        tried(model, lambda: model(x), armed, looks)
        """,
        tmp_path,
    )


@pytest.mark.long
def test_distributed_tensors(tmp_path: Any) -> None:
    in_a_process(
        f"""
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import Replicate, distribute_module, distribute_tensor
        dist.init_process_group("gloo", init_method="file://{tmp_path}/group", rank=0, world_size=1)
        mesh = init_device_mesh("cpu", (1,))
        for is_sharded in (True, False):
            model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), torch.ones(2, 4)
            if is_sharded:
                fully_shard(model, mesh=mesh)
            else:
                distribute_module(model, mesh)
                x = distribute_tensor(x, mesh, [Replicate()])
            opt = torch.optim.SGD(model.parameters(), 0.1)
            def run():
                model(x).sum().backward()
                opt.step(); opt.zero_grad()
            tried(model, run, armed, looks)
        dist.destroy_process_group()
        """,
        tmp_path,
    )


@pytest.mark.long
def test_reruns_across_transforms(tmp_path: Any) -> None:
    in_a_process(
        """
        class Net(nn.Module):
            def __init__(self, scope):
                super().__init__()
                self.scope = scope
                self.inner = nn.Linear(4, 4)
            def forward(self, x):
                if self.scope == "jvp":
                    return torch.func.jvp(self.inner, (x,), (torch.ones_like(x),))[1]
                if self.scope == "vmap":
                    return torch.vmap(self.inner)(x)
                return torch.vmap(torch.func.grad(lambda row: self.inner(row).sum()))(x)
        for scope in ("jvp", "vmap", "grad"):
            net, x = Net(scope), torch.randn(2, 4)
            tried(net, lambda: net(x), (), looks)
        """,
        tmp_path,
    )


def test_zero_tangents(tmp_path: Any) -> None:
    """Forward-mode autograd makes tensors of zeros that have a storage of the right size and no memory."""
    in_a_process(
        """
        class Tangent(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
            def forward(self, x):
                return torch.func.jvp(self.inner, (x,), (torch.ones_like(x),))[1]
        net, x = nn.Sequential(Tangent(), nn.Identity()), torch.randn(2, 4)
        lines, out = io.StringIO("stability **\\nshadow fp64 in 0\\n"), io.StringIO()
        with DebugConsole(net, input=lines, output=out) as console:
            console.execute("break 1")
            net(x)
        assert "ops of Sequential followed" in out.getvalue(), out.getvalue()
        print("alive")
        """,
        tmp_path,
    )


class Resizes(nn.Module):
    """Gives its memory back and takes other, as FSDP and kernels with `out=` do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("cache", torch.zeros(16))

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        self.cache.untyped_storage().resize_(0)
        self.cache.untyped_storage().resize_(64)
        self.cache.zero_()
        return y.resize_(8, 8).zero_()


@pytest.mark.parametrize(
    "look", [*LOOKS, "out", "out.sum()", "stats model.cache", "watch --stop cache", "top out"]
)
def test_no_look_pins_a_storage(look: str, tmp_path: Any) -> None:
    model, out = Resizes(), io.StringIO()
    lines = f"{look.format(folder=tmp_path)}\ncontinue\n"
    with DebugConsole(model, input=io.StringIO(lines), output=out) as console:
        console.execute("break linear")
        model(torch.ones(4, 4))
        model(torch.ones(4, 4))
    assert "a bug in" not in out.getvalue()


class Makes(nn.Module):
    def __init__(self, make: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor) -> Any:
        return self.make(x)


KINDS: dict[str, Callable[[Tensor], Any]] = {
    "plain": lambda x: x,
    "sparse": lambda x: x.to_sparse(),
    "csr": lambda x: x.to_sparse_csr(),
    "nested": lambda x: torch.nested.nested_tensor([x[0], x[1]], layout=torch.jagged),
    "strided nested": lambda x: torch.nested.nested_tensor([x[0], x[1]]),
    "float8": lambda x: x.to(torch.float8_e4m3fn),
    "half": lambda x: x.half(),
    "complex": lambda x: torch.complex(x, x).conj(),
}


def told(model: nn.Module, first: str, *lines: str) -> str:
    out = io.StringIO()
    text = "".join(f"{line}\n" for line in lines)
    with DebugConsole(model, input=io.StringIO(text), output=out) as console:
        console.execute(first)
        model(torch.ones(2, 4))
    return " ".join(out.getvalue().split())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_a_nan_is_found_in_every_kind_that_can_be_read(kind: str) -> None:
    make = KINDS[kind]
    bad, good = Makes(lambda x: make(x * NAN)), Makes(lambda x: make(x))
    assert "nan" in told(bad, "break **", "why out").partition("why out")[2]
    assert "is finite" in told(good, "break **", "why out")
    assert "(layerstep) why out" in told(bad, "catch nan", "why out")
    assert "(layerstep) why out" not in told(good, "catch nan", "why out")


def test_a_nan_is_found_inside_vmap() -> None:
    inner = Makes(lambda row: row * NAN)
    model = Makes(lambda x: torch.vmap(inner)(x))
    model.inner = inner
    text = told(model, "break inner", "why out", "stats out")
    assert "is finite" not in text and "8 nan of 8" in text


def test_a_value_that_cannot_be_read_is_not_called_finite() -> None:
    model = Makes(lambda x: torch.empty(3, device="meta"))
    text = told(model, "break **", "why out")
    assert "is finite" not in text and "cannot be read" in text
