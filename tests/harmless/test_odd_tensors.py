"""Any kind of tensor, any look at it, any mistake in asking: an answer, never an end of the run."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layerstep import DebugConsole
from layerstep.config import Config
from layerstep.engine.messages import Message
from layerstep.render.screen import to_text
from layerstep.tensors.clones import clone_of
from tensor_cases import kinds

HERE = Path(__file__).parent
LOOKS = (
    "stats X",
    "stats X out --sort std",
    "inspect X",
    "print X",
    "X",
    "hist X --exact --log",
    "export x.csv",
    "heatmap X",
    "export x.svg",
    "top X 3",
    "compare X X",
    "compare X out",
    "export x.json",
    "save-tensor X x.safetensors",
    "save-tensor X x.npy",
    "attention --tokens X",
)
PASSED = (
    "stats **",
    "activations",
    "anomalies",
    "attention",
    "record",
    "history made",
    "leaks",
    "compare out inp",
)


class Making(nn.Module):
    """Gives out what it was told to make; the next module passes it on."""

    def __init__(self, make: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.make = make
        self.made = nn.Identity()

    def forward(self, x: Tensor) -> Any:
        return self.made(self.make(x))


def answers(model: nn.Module, lines: list[str], x: Tensor) -> dict[str, str]:
    """The lines typed in front of a real console, and what each was answered on a wide screen."""
    console = DebugConsole(model, commands=lines, output=io.StringIO())
    found: dict[str, str] = {}

    def hear(message: Message) -> None:
        found[message.line or f"{message.kind} {len(found)}"] = to_text(message.view, width=1000)

    console.session.listen(hear)
    with console:
        model(x)
    return found


def assert_sane(found: dict[str, str]) -> None:
    bugs = {line: text for line, text in found.items() if "a bug in layerstep" in text}
    assert bugs == {}
    long = {line for line, text in found.items() if text.count("\n") > Config().max_lines}
    assert long == set()
    refusals = {line: text for line, text in found.items() if text.startswith("✗")}
    assert {line: text for line, text in refusals.items() if "\n" in text} == {}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Holding(Making):
    """Has tensors that are no parameters of it, by number."""

    def __init__(self, odd: list[Tensor]) -> None:
        super().__init__(lambda x: x * 2)
        self.held = SimpleNamespace(odd=odd)


@pytest.mark.filterwarnings("ignore")
def test_every_look_at_every_kind_has_an_answer() -> None:
    odd = [tensor for name, tensor in kinds().items() if name != "freed"]
    looks = [look.replace("X", f"model.held.odd[{n}]") for n in range(len(odd)) for look in LOOKS]
    found = answers(Holding(odd), ["break made", "continue", *looks, "continue"], torch.ones(2, 3))
    assert_sane(found)
    assert len(found) > len(odd) * 8


def test_a_look_at_freed_memory_is_no_crash() -> None:
    """In a process of its own: what goes wrong here is a segmentation fault."""
    looks = [look.replace("X", "model.held.odd[0]") for look in LOOKS]
    code = f"""
        import torch
        from test_odd_tensors import Holding, _freed, answers, assert_sane
        lines = ["break made", "continue", *{looks!r}, "1 + 41"]
        found = answers(Holding([_freed(torch.ones(2, 3))]), lines, torch.ones(2, 3))
        assert_sane(found)
        print(found["1 + 41"])
    """
    paths = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert (done.returncode, "42" in done.stdout) == (0, True), done.stderr[-2000:]


def _freed(x: Tensor) -> Tensor:
    made = x * 2
    made.untyped_storage().resize_(0)
    return made


MAKERS: dict[str, Callable[[Tensor], Any]] = {
    "freed": _freed,
    "expanded": lambda x: x[:, :1, None].expand(2, 100_000, 100_000),
    "sparse": lambda x: x.to_sparse(),
    "csr": lambda x: x.to_sparse_csr(),
    "nested": lambda x: torch.nested.nested_tensor([x[0], x[1][:2]]),
    "jagged": lambda x: torch.nested.nested_tensor([x[0], x[1][:2]], layout=torch.jagged),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "four bits": lambda x: torch.quantize_per_channel(x, torch.ones(2), torch.zeros(2), 0, torch.quint4x2),
    "mkldnn": lambda x: x.to_mkldnn(),
    "meta": lambda x: x.to("meta"),
    "lazy clone": lambda x: torch._lazy_clone(x),
    "conjugate": lambda x: torch.complex(x, x).conj(),
    "empty": lambda x: x[:0],
    "nothing": lambda x: None,
}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.filterwarnings("ignore")
def test_an_odd_output_is_recorded_and_looked_at(kind: str) -> None:
    """The last line proves that the session is still there: a bug would have detached it."""
    lines = ["record ** --tensors", "break made", "continue", *PASSED, "perturbed?", "1 + 41"]
    found = answers(Making(MAKERS[kind]), lines, torch.ones(2, 3))
    assert_sane(found)
    assert "42" in found["1 + 41"]


TRANSFORMS: dict[str, Callable[[nn.Module], Callable[[Tensor], Any]]] = {
    "vmap": torch.func.vmap,
    "grad": lambda model: torch.func.grad(lambda x: model(x).sum()),
    "jvp": lambda model: lambda x: torch.func.jvp(model, (x,), (x,)),
    "functionalize": torch.func.functionalize,
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.filterwarnings("ignore")
def test_recording_inside_a_transform(name: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    x = torch.ones(2, 3)
    expected = TRANSFORMS[name](model)(x)
    output = io.StringIO()
    lines = ["record ** --tensors", "break 1", "continue", "attention", "history 0", "leaks", "continue"]
    with DebugConsole(model, commands=lines, output=output):
        found = TRANSFORMS[name](model)(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert "a bug in layerstep" not in output.getvalue()
    assert "forwards 1 to 1" in output.getvalue()


def test_history_has_no_figures_of_what_has_no_values() -> None:
    lines = ["record made", "break made", "continue", "history made"]
    text = answers(Making(MAKERS["meta"]), lines, torch.ones(2, 3))["history made"]
    assert "mean  - → -" in text and "nan →" not in text


def test_a_copy_takes_what_the_original_takes() -> None:
    wide = torch.arange(3.0)[:, None].expand(3, 10**9)
    copy = clone_of(wide)
    assert copy.shape == wide.shape and copy.untyped_storage().nbytes() == 12
    assert copy[2, 5] == 2 and copy.data_ptr() != wide.data_ptr()
    with pytest.raises(ValueError, match="freed"):
        clone_of(_freed(torch.ones(2)))


def test_a_module_whose_weights_are_freed_is_not_run_again() -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=True)

    class Freeing(nn.Module):
        """As sharding does: the weights are gone as soon as the layer has run."""

        def __init__(self) -> None:
            super().__init__()
            self.attn = attention
            self.after = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            out = self.attn(x, x, x)[0].detach()
            attention.in_proj_weight.untyped_storage().resize_(0)
            return self.after(out)

    lines = ["record attn --tensors", "break after", "continue", "attention attn"]
    found = answers(Freeing(), lines, torch.ones(1, 3, 4))
    assert "not all of its weights are in memory" in found["attention attn"]


# -- mistakes ----------------------------------------------------------------------------

COMMANDS = (
    "stats", "inspect", "hist", "heatmap", "top", "anomalies", "compare", "weights", "activations",
    "attention", "record", "history", "save-tensor", "export",
)  # fmt: skip
MISTAKES = (
    "nope", "nope.x", "out +", "(", '"', "--", "--nope", "--sort", "--sort nope", "out 5 6", "[] {}",
    "**.nope", "type:Nope", "/(/", "out out out out", "é", "lambda: 1", "out --bins 0",
    "--head x", "--head 99", "--batch -1", "--tokens 3", "--tokens", "** every 0", "** if (", "$99", "@",
    "9" * 30, "bad.npy", "out bad.npy", "out missing.safetensors", "out x.foo", "out /no/such/x.npy",
    "x.foo", "noext", "/no/such/a.svg", "~nobody/x.svg", "out ~nobody/x.npy", "out 0 0", "1/0", "x = 3",
)  # fmt: skip


def _typed() -> Iterator[str]:
    for command in COMMANDS:
        yield from (f"{command} {mistake}" for mistake in MISTAKES)


def test_a_mistake_is_one_line() -> None:
    Path("bad.npy").write_text("no array")
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    found = answers(model, ["break 1", "continue", *_typed(), "continue"], torch.ones(2, 3))
    assert_sane(found)
    assert len(found) > 400


@pytest.mark.parametrize(
    "line, words",
    [
        ("stats out --sort nope", "there is name, shape"),
        ("hist out --bins 0", "1 to 1000"),
        ("heatmap out 0 7", "has no dimension 7"),
        ("top out inp", "one tensor, then a count"),
        ("compare out", "compare A, B"),
        ("compare out 3", "a tensor with a tensor"),
        ("compare out inp.npy", "inp.npy is no file"),
        ("weights 1", "`weights` shows"),
        ("activations --sort x", "mean, std"),
        ("attention --head x", "--head takes a number from 0"),
        ("record ** every 0", "every takes a number from 1"),
        ("save-tensor out x.foo", ".safetensors or .npy"),
        ("export x.foo", "there are .attention.html, .csv"),
    ],
)
def test_a_mistake_names_a_way_on(line: str, words: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    found = answers(model, ["break 1", "continue", "stats out", line, "continue"], torch.ones(2, 3))
    assert found[line].startswith("✗") and words in found[line]
