"""Ops: stepping by them, stopping at them, listing them; and what is said where none is seen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils.checkpoint import checkpoint

from layerstep._torch import forward_swap as cells
from layerstep.calls.events import Phase
from layerstep.demo.model import TinyTransformer
from layerstep.ops.stepping import OpSteps
from layerstep.render.screen import to_text
from zoo import console_on


class Small(nn.Module):
    """A linear layer, a softmax, a product, and a child that is called after them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        weights = F.softmax(self.first(x), dim=-1)
        mixed = weights @ x.T
        mixed += 1
        return self.last(mixed @ x)


X = torch.arange(12.0).reshape(3, 4)


def stepped(model: nn.Module, *lines: str, x: Any = X) -> tuple[list[str], str]:
    """The title of each stop, and all that was shown."""
    console, seen = console_on(model, lines)
    titles: list[str] = []
    console.session.listen(
        lambda m: titles.append(_title(m.view)) if m.kind == "stop" else None  # type: ignore[func-returns-value]
    )
    console.run(x)
    assert not seen.bugs, seen.bugs
    return titles, seen.text


def _title(view: Any) -> str:
    first = view.views[0] if hasattr(view, "views") else view
    return " ".join(span.text for span in first.title[:3])


def test_step_op_goes_through_the_ops_of_a_module_and_ends_at_its_exit() -> None:
    titles, _ = stepped(Small(), "break Small enter", "into", *["step op"] * 9)
    assert titles[0] == "Small entered Small"
    assert titles[1:] == [
        "first F.linear done",
        "Small F.softmax done",
        "Small matmul done",
        "Small add_ done",
        "Small matmul done",
        "last F.linear done",
        "Small done Small",
    ]


def test_an_empty_line_repeats_it() -> None:
    titles, _ = stepped(Small(), "into", "step op", "", "", "continue")
    assert [title.split()[1] for title in titles[1:]] == ["F.linear", "F.softmax", "matmul"]
    kernels, _ = stepped(Small(), "into", "stepi", "", "", "continue")
    assert [title.split()[1] for title in kernels[1:]] == ["aten.t", "aten.addmm", "aten._softmax"]


def test_into_op_is_step_op_and_a_count_counts_ops() -> None:
    assert stepped(Small(), "into", "into op")[0][1] == "first F.linear done"
    assert stepped(Small(), "into", "step op 4")[0][1] == "Small add_ done"
    assert stepped(Small(), "into", "stepi 3")[0][1] == "Small aten._softmax done"


def test_a_count_that_is_too_large_ends_with_the_module() -> None:
    titles, text = stepped(Small(), "break first enter", "continue", "step op 99", "step op")
    assert titles[1:] == ["first done Linear", "Small F.softmax done"]
    assert "no op was seen" not in text


def test_after_an_exit_it_is_the_enclosing_module() -> None:
    titles, text = stepped(Small(), "break first", "continue", "step op", "finish", "step op")
    assert titles[1:] == ["Small F.softmax done", "Small done Small"]
    assert "nothing encloses Small" in text


def test_the_names_at_an_op() -> None:
    lines = ["[t.shape for t in inp]", "out.shape", "!weights is inp[0]", "name, mod is model", "kwargs"]
    _, text = stepped(Small(), "into", "step op 3", *lines)
    assert "[torch.Size([3, 4]), torch.Size([4, 3])]" in text
    assert "torch.Size([3, 3])" in text and "True" in text and "('Small', True)" in text


def test_an_op_stop_shows_arguments_result_and_line() -> None:
    _, text = stepped(Small(), "into", "step op 2", "step op 2")
    assert "input  f32[3, 4]" in text and "with   dim=-1" in text and "out    f32[3, 4]" in text
    assert "→" in text and "weights = F.softmax(self.first(x), dim=-1)" in text
    assert "in place: its operand is as it is now" in text


def test_where_and_up_at_an_op() -> None:
    _, text = stepped(Small(), "into", "step op", "where", "up", "mod", "list")
    assert "0  F.linear  op  done" in text
    assert "(input=f32[3, 4], weight=f32[4, 4], bias=f32[4]) → f32[3, 4]" in text
    assert "1  first  Linear  running" in text and "Linear(in_features=4" in text


def test_the_paths_of_running_modules_are_theirs_not_the_ops() -> None:
    lines = ["torch.equal(first.input, inp[0]), type(inp)", "first.output", "attention"]
    _, text = stepped(Small(), "break first enter", "continue", "step op", *lines)
    assert "(True, <class 'tuple'>)" in text and "first has not finished" in text


@pytest.mark.parametrize("step", ["step op", "stepi"])
def test_autograd_is_normal_at_an_op(step: str) -> None:
    line = "torch.autograd.grad((mod.weight * 2).sum(), mod.weight)[0].sum()"
    _, text = stepped(Small(), "break first enter", "continue", step, line, "out.requires_grad")
    assert "= 32" in text
    assert ("True" if step == "step op" else "False") in text


def test_autograd_stays_off_where_the_run_has_it_off() -> None:
    with torch.inference_mode():
        _, text = stepped(Small(), "break first enter", "continue", "stepi", "(mod.weight * 2).requires_grad")
    assert "False" in text


def test_stepi_in_the_backward_names_the_nodes() -> None:
    model = Small()
    console, seen = console_on(
        model, ["break last backward", "continue", "stepi", "stepi 3", "where", "out.shape", "continue"]
    )
    with console:
        model(X.clone().requires_grad_()).sum().backward()
    assert not seen.bugs
    assert "in MmBackward0" in seen.text and "aten op" in seen.text
    assert [path for path, _ in seen.stops[1:]] == ["Small", "Small"]


@pytest.mark.parametrize("step", ["stepi", "step", "next"])
def test_a_step_in_a_backward_says_what_of_the_forward_was_not_followed(step: str) -> None:
    """The point was set when a part of the forward had run."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    late = ["tbreak 1", "continue", "break 2 backward", "continue", step, "detach"]
    console, seen = console_on(model, late)
    with console:
        model(X).sum().backward()
    passed = "the backward pass has ended; modules that were called before the point was set were passed over"
    assert passed in " ".join(seen.text.split())
    console, seen = console_on(model, ["break 2 backward", "continue", *[step] * 30, "detach"])
    with console:
        model(X).sum().backward()
    assert "· the backward pass has ended\n" in seen.text


def test_points_in_a_backward_that_were_set_too_late_say_so() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    lines = ["tbreak 1.0", "continue", "break 1 backward", "break 0 backward", "continue"]
    console, _ = console_on(model, lines)
    with console:
        model(X).sum().backward()
        why = [" ".join(to_text(console.execute(f"why-not {point}")).split()) for point in (2, 3)]
    assert "it ran already when the point was set; the next call is followed" in why[0]
    assert "it was not called since the point was set" in why[1]


def test_step_op_in_the_backward_says_what_to_do() -> None:
    model = Small()
    console, seen = console_on(model, ["break last backward", "continue", "step op", "continue"])
    with console:
        model(X).sum().backward()
    assert "`stepi` steps by aten ops" in seen.text


def test_it_needs_a_module_that_runs() -> None:
    for line in ("step op", "stepi", "into op"):
        assert "nothing has stopped yet" in stepped(Small(), line)[1]
    assert "'x' is no count" in stepped(Small(), "step op x")[1]
    assert "into has no 'nowhere'" in stepped(Small(), "into nowhere")[1]


def test_next_and_finish_from_an_op() -> None:
    assert stepped(Small(), "into", "step op 2", "next")[0][-1] == "last done Linear"
    assert stepped(Small(), "into", "step op 2", "finish")[0][-1] == "Small done Small"
    entered = ["break first enter", "continue", "step op"]
    assert stepped(Small(), *entered, "finish")[0][-1] == "first done Linear"
    assert stepped(Small(), *entered, "step")[0][-1] == "first done Linear"
    assert stepped(Small(), *entered, "until last")[0][-1] == "last done Linear"


class Scripts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.script = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
        self.same = nn.Identity()
        self.lstm = nn.LSTM(4, 4)
        self.attention = nn.MultiheadAttention(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.lstm(self.same(self.script(x)))[0]
        return self.attention(y, y, y)[0]


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_stepped_says_so() -> None:
    lines = ["break script enter", "break same enter", "continue", "step op", "continue", "step op"]
    lines += ["break op:lstm", "break op:multi_head*", "continue", "continue"]
    text = " ".join(stepped(Scripts(), *lines)[1].split())
    assert "no op was seen in script; RecursiveScriptModule is TorchScript and runs as one call" in text
    assert "no op was seen in same; Identity computes nothing here" in text
    assert text.count("one op; `stepi` sees below it") == 2


# --- points ---


def test_a_point_stops_after_ops_of_its_name() -> None:
    assert stepped(Small(), "break op:softmax", "continue")[0] == ["Small F.softmax done"]
    assert stepped(Small(), "break op:matmul", *["continue"] * 3)[0] == ["Small matmul done"] * 2
    assert stepped(Small(), "break op:*soft*", "continue")[0] == ["Small F.softmax done"]
    assert stepped(Small(), "break op:add", "continue")[0] == ["Small add_ done"]
    assert stepped(Small(), "break op:aten.softmax", "continue")[0] == ["Small aten._softmax done"]


def test_where_and_condition() -> None:
    assert stepped(Small(), "break op:linear in last", *["continue"] * 2)[0] == ["last F.linear done"]
    assert stepped(Small(), "break op:linear in type:Linear", *["continue"] * 3)[0] == [
        "first F.linear done",
        "last F.linear done",
    ]
    wide = stepped(Small(), "break op:linear if out.shape[-1] == 2", *["continue"] * 2)[0]
    assert wide == ["last F.linear done"]
    _, text = stepped(Small(), "break op:linear if out.nosuch", "continue")
    assert "raised AttributeError" in text


def test_points_at_ops_are_points_like_others() -> None:
    model = Small()
    lines = [
        "break op:matmul",
        "tbreak op:softmax",
        "break op:linear in first",
        "commands 3 out.shape; continue",
        "ignore 1 1",
        "info breaks",
        "continue",
        "continue",
        "info breaks",
        "delete 1",
        "continue",
    ]
    titles, text = stepped(model, *lines)
    assert titles == ["first F.linear done", "Small F.softmax done", "Small matmul done"]
    assert "op:softmax" in text and "op:linear in first" in text and "ignored 1 more times" in text


def test_they_are_saved_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    points = ["break op:matmul in type:Small if out.sum() > 0", "tbreak op:aten.mm", "break op:*norm*"]
    stepped(Small(), *points, "save points.txt")
    assert (tmp_path / "points.txt").read_text().splitlines() == points
    titles, _ = stepped(Small(), "source points.txt", "continue", "continue")
    assert titles[0] == "Small aten.mm done"


def test_a_point_set_in_the_middle_of_a_forward_holds_for_the_rest_of_it() -> None:
    titles, _ = stepped(
        Small(), "break first", "continue", "break op:matmul", "continue", "delete 2", "continue"
    )
    assert titles == ["first done Linear", "Small matmul done"]


def test_ops_outside_of_modules_and_in_recomputation_are_passed_by() -> None:
    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Small()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)  # type: ignore[no-any-return]

    model = Again()
    console, seen = console_on(model, ["break op:softmax", *["continue"] * 9])
    with console:
        out = model(X.clone().requires_grad_())
        out.softmax(-1).sum().backward()
    assert len(seen.stops) == 1 and not seen.bugs


def test_a_silent_point_says_why() -> None:
    _, text = stepped(Small(), "break op:sofmax", "break op:softmax in last", "continue")
    text = " ".join(text.split())
    assert "no op of that name was seen; similar: softmax" in text
    assert "such an op ran, but not where it looks" in text


@pytest.mark.filterwarnings("ignore")
def test_a_point_hidden_in_a_larger_op_says_where() -> None:
    _, text = stepped(Scripts(), "break op:softmax", "break op:relu", "break op:nowhere.x y", "continue")
    text = " ".join(text.split())
    assert "it may be hidden in multi_head_attention_forward, which is one op" in text
    assert "script is TorchScript and runs as one call" in text
    assert "'y' is too much; usage: break" in text


# --- the list ---


def test_ops_lists_what_a_module_runs() -> None:
    _, text = stepped(Small(), "break Small", "continue", "ops", "ops --aten", "ops first", "ops last --what")
    assert "Small  6 ops" in text and "run again on copies" in text
    for row in ("first   F.linear", ".       F.softmax", "3×4, 4×3 → 3×3", "test_opstep.py:"):
        assert row in text
    assert "aten._softmax" in text and "no option --what" in text


def test_ops_groups_what_repeats() -> None:
    torch.manual_seed(0)
    model = TinyTransformer().eval()
    tokens = torch.randint(1, 64, (1, 5))
    lines = ["config max_lines 80", "ops TinyTransformer", "config max_lines 12", "ops TinyTransformer"]
    _, text = stepped(model, "break head", "continue", *lines, x=tokens)
    every, _, some = text.partition("config max_lines 12")
    assert "× 11" in every and "blocks.*" in every
    assert "left out" in some.partition("module")[0]  # long rows push a note off the screen


@pytest.mark.filterwarnings("ignore")
def test_ops_of_what_has_none() -> None:
    _, text = stepped(Scripts(), "break script", "continue", "ops")
    assert "no op was seen in script" in text


# --- the mechanism ---


def test_the_cell_of_the_forward_is_where_it_was_seen() -> None:
    assert cells.can_swap()


def test_without_it_ops_are_stepped_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "can_swap", lambda: False)
    titles, _ = stepped(Small(), "break op:softmax", "continue", "step op", "step op 99")
    assert titles == ["Small F.softmax done", "Small matmul done", "Small done Small"]
    assert not _get_current_function_mode_stack()


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["break first", "continue", "step"], []),
        (["break first", "continue", "step op"], [Phase.OP]),
        (["break first", "continue", "step op", "until last enter"], []),
        (["break op:softmax in first", "continue"], []),
        (["break op:sum in last", "continue"], [Phase.OP]),
        (["break op:aten.sum", "continue"], [Phase.KERNEL]),
        (["break op:aten.sum", "disable 1", "continue"], []),
    ],
)
def test_a_mode_lies_only_where_it_is_asked_for(lines: list[str], expected: list[Phase]) -> None:
    model = Small()
    console, _ = console_on(model, lines)
    laid: list[list[Phase]] = []
    forward = model.last.forward

    def last(x: Tensor) -> Tensor:
        laid.append(console.session.instruments.get(OpSteps).lying)
        return forward(x)

    model.last.forward = last  # type: ignore[method-assign]
    console.run(X)
    assert laid == [expected] and not console.session.instruments.get(OpSteps).lying


def test_the_first_op_imports_no_compiler() -> None:
    """torch._dynamo takes over a second to import, and a dispatch mode does it unless told not to."""
    code = (
        "import io, sys, torch\n"
        "from layerstep import DebugConsole\n"
        "lines = ['into', 'stepi', 'step op', 'stepi']\n"
        "console = DebugConsole(torch.nn.Linear(2, 2), commands=lines, output=io.StringIO())\n"
        "console.run(torch.ones(1, 2))\n"
        "print('torch._dynamo' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_finish_ends_at_the_enclosing_module_after_a_step_by_ops() -> None:
    """The mode of the step goes when the run goes on; the taps that `finish` waits at must stay."""
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.ReLU())
    titles, _ = stepped(model, "tbreak 0.1", "continue", "step op", "finish", "continue")
    assert titles == ["0.1 done Linear", "0 done Sequential", "Sequential done Sequential"]
