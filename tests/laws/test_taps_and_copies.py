"""Taps are no part of a model, TorchScript is one call, and compiled or traced code explains itself."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import quick_python
from layerstep import DebugConsole


def console_on(model: nn.Module, *lines: str) -> tuple[DebugConsole, io.StringIO]:
    said = io.StringIO()
    typed = io.StringIO("".join(line + "\n" for line in lines))
    return DebugConsole(model, input=typed, output=said), said


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))


class Scripted(nn.Module):
    """A model with a part in TorchScript."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.jit.script(small())
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "first, lines",
    [
        ("break 0", ["catch exception in *", "continue", "detach"]),
        ("break 0", ["catch exception in *", "continue", "delete 2", "continue"]),
        ("break 2", ["memory 2", "step"]),
        ("break Sequential enter", ["leaks on", "continue", "leaks off", "continue"]),
        ("break 0", ["catch exception in *", "continue"]),
    ],
)
def test_a_second_tap_may_go_at_a_stop_of_the_first(first: str, lines: list[str]) -> None:
    model = small()
    console, said = console_on(model, *lines)
    with console:
        console.execute(first)
        for _ in range(4):
            model(torch.ones(2, 4)).sum().backward()
    assert "bug in" not in said.getvalue()


@pytest.mark.parametrize("last", ["detach", "delete", "continue", "step"])
def test_the_exception_stays_the_programs_whatever_is_typed_at_it(last: str) -> None:
    class Failing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("of the model")

    model = nn.Sequential(nn.Linear(4, 4), Failing())
    console, _ = console_on(model, last, *["continue"] * 9)
    with pytest.raises(ValueError, match="of the model"), console:
        console.execute("catch exception in **")
        console.execute("break ** if False")
        model(torch.ones(2, 4))


def test_a_copied_layer_still_runs_as_one_kernel() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        expected = layer(x)
        console, _ = console_on(layer)
        with console:
            console.execute("break ** if False")
            twin = copy.deepcopy(layer)
            assert torch.equal(layer(x), expected)
        assert "forward" not in layer.__dict__ and not any(part._forward_hooks for part in twin.modules())
        assert torch.equal(twin(x), expected)


LINES = (
    "break inner.0",
    'log inner.0 "x"',
    "record inner.0",
    "tree inner.0",
    "flops inner.0",
    "list inner",
    "list inner.0",
    "activations inner.0",
    "why-not inner.0",
    "break inner.nope",
    "grad inner.0",
    "weights inner.0",
    "tree",
    "weights",
)


@pytest.mark.parametrize("line", LINES)
def test_a_path_into_torchscript_gets_a_reason(line: str) -> None:
    model = Scripted()
    console, said = console_on(model, line)
    with console:
        console.execute("break head")
        model(torch.ones(2, 4))
    text = " ".join(said.getvalue().split())
    assert "bug in" not in text
    if line in ("why-not inner.0", "break inner.0"):
        assert "inner is a TorchScript module and runs as one call" in text


def test_a_scripted_model_is_one_call_that_stops() -> None:
    model = torch.jit.script(small())
    console, said = console_on(model, "weights", "why-not RecursiveScriptModule.0", "continue")
    with console:
        console.execute("break **")
        out = model(torch.ones(2, 4))
    text = said.getvalue()
    assert out.shape == (2, 4) and "done  RecursiveScriptModule" in text
    assert "0.weight" in text and "runs as one call" in text and "bug in" not in text


@pytest.mark.filterwarnings("ignore")
def test_an_exported_graph_says_that_it_calls_no_modules() -> None:
    model = torch.export.export(small(), (torch.ones(2, 4),)).module()
    console, _ = console_on(model)
    with console:
        model(torch.ones(2, 4))
        assert "never calls it" in str(console.execute("why-not GraphModule.0"))


PROGRAMS = {
    "wrapper": (
        """
import torch
from torch import nn
before, calls = nn.Module.__call__, []
def mine(self, *args, **kwargs):
    calls.append(1)
    return before(self, *args, **kwargs)
nn.Module.__call__ = mine
m = nn.Linear(4, 4)
for _ in range(4):
    m(torch.ones(1, 4))
print(len(calls), nn.Module.__call__ is mine)
""",
        "break **\ncontinue\ndetach\n",
        "4 True",
        "",
    ),
    "compiled function": (
        """
import torch
from torch import nn
net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
step = torch.compile(lambda x: net(x).sum(), backend="eager")
for _ in range(2):
    print(step(torch.ones(1, 4)).shape)
""",
        "break 0\ncontinue\ncontinue\ndetach\n",
        "torch.Size([])\ntorch.Size([])",
        "0  done  Linear",
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_under_run_prints_as_without_us(name: str, tmp_path: Path) -> None:
    code, typed, printed, shown = PROGRAMS[name]
    script = tmp_path / "program.py"
    script.write_text(code)
    seen = quick_python.run(["-m", "layerstep", "run", script], input=typed)
    assert seen.stdout.strip() == printed
    assert shown in seen.stderr and "bug in" not in seen.stderr


def test_a_file_saved_at_the_prompt_loads_without_layerstep(tmp_path: Path) -> None:
    model, file = small(), tmp_path / "model.pt"
    console, _ = console_on(model, f"torch.save(model, {str(file)!r})", "continue")
    with console:
        console.execute("break 1")
        model(torch.ones(2, 4))
    code = f"""
import sys
sys.modules["layerstep"] = None
import torch
from torch import nn
with torch.serialization.safe_globals([nn.Sequential, nn.Linear, nn.ReLU]):
    model = torch.load({str(file)!r})
assert not any(part._forward_hooks or part._forward_hooks_with_kwargs for part in model.modules())
print(tuple(model(torch.ones(2, 4)).shape))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert done.stdout.strip() == "(2, 4)", done.stderr


def test_a_model_may_be_called_while_the_interpreter_comes_down() -> None:
    code = """
import io, sys
import torch
from torch import nn
import layerstep
net, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), torch.ones(2, 4)
console = layerstep.attach(net, input=io.StringIO(), output=io.StringIO())
for line in ("record **", "memory on", "watch --stop 0.weight"):
    console.execute(line)
net(x)
class Last:
    def __init__(self):
        self.net, self.x, self.me = net, x, self
    def __del__(self):
        print(tuple(self.net(self.x).shape))
sys.modules["kept"] = Last()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert (done.returncode, done.stdout.strip()) == (0, "(2, 4)"), done.stderr


def test_a_model_that_is_first_called_by_a_trace_is_traced_as_bare(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import torch\nfrom torch import nn\n"
        "net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())\n"
        "print(torch.jit.trace(net, torch.ones(2, 4))(torch.ones(2, 4)).shape)\n"
    )
    seen = quick_python.run(["-m", "layerstep", "run", "--batch", "-e", "profile 5", script])
    assert seen.stdout.strip() == "torch.Size([2, 4])", seen.stderr


def test_a_tree_of_equal_torchscript_modules() -> None:
    model = nn.Sequential(*(torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Tanh())) for _ in range(4)))
    console, said = console_on(model, "tree")
    with console:
        console.execute("break **")
        model(torch.ones(2, 4))
    text = said.getvalue()
    assert "bug in" not in text and "RecursiveScriptModule" in text.partition("tree")[2]
