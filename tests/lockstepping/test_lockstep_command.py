"""`lockstep` at the prompt, from code and on the command line: what it says, and that it changes nothing."""

from __future__ import annotations

import copy
import functools
import io
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from test_planted import ids, image, net
from torch import Tensor, nn

import layerstep
import quick_python
from layerstep import DebugConsole, UserError, lockstep
from layerstep.cli import main
from layerstep.render.screen import to_text
from play import play
from reimplemented import gpt2, mine_from_gpt2

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
gpt2 = functools.cache(gpt2)


class Typed:
    """Lines typed at a stop in a model, with a second model at hand; what was answered."""

    def __init__(self, model: nn.Module, x: Tensor, lines: list[str], where: str = "transformer.h.1") -> None:
        self.output = io.StringIO()
        commands = [f"break {where}", "continue", *lines]
        self.console = DebugConsole(model, commands=commands, output=self.output)
        self.answers: dict[str, str] = {}
        self.console.session.listen(self._hear)
        with self.console:
            self.result = model(x)

    def _hear(self, message: Any) -> None:
        if message.line:
            self.answers[message.line] = to_text(message.view, width=100)


other: nn.Module
"""What the lines call `other`: a global of the function that runs the model."""


def typed(lines: list[str], second: nn.Module, model: nn.Module | None = None) -> dict[str, str]:
    global other
    other = second
    return Typed(model or gpt2(), ids(), lines).answers


def test_the_prompt_names_the_layer_and_shows_the_mapping() -> None:
    told = typed(["lockstep model other"], mine_from_gpt2(gpt2(), "relu"))["lockstep model other"]
    assert "model and other first differ in transformer.h.1.mlp.act | layers.1.ffn.act" in told
    assert "NewGELUActivation | ReLU" in told
    assert "transformer.h.*.mlp.c_fc" in told and "layers.*.ffn.up" in told
    assert "44 pairs of 43 and 44 calls" in told


def test_nothing_of_the_run_changes() -> None:
    model, second = copy.deepcopy(gpt2()).train(), mine_from_gpt2(gpt2(), "erf").train()
    state = [*model.state_dict().values(), *second.state_dict().values()]
    before = [each.clone() for each in state]
    torch.manual_seed(3)
    expected = model(ids()).logits
    torch.manual_seed(3)
    global other
    other = second
    played = Typed(model, ids(), ["lockstep model other", "perturbed?", "lockstep other model"])
    assert torch.equal(played.result.logits, expected)
    assert played.answers["perturbed?"].startswith("✓ no:")
    assert "differ" in played.answers["lockstep other model"]
    assert all(torch.equal(x, y) for x, y in zip(before, state, strict=True))
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in second.modules())


def test_from_code_nothing_changes_and_streams_stay() -> None:
    model, second = net().train(), copy.deepcopy(net()).train()
    state = {name: each.clone() for name, each in model.state_dict().items()}
    stream = torch.get_rng_state()
    x = image()
    shown = x.clone()
    assert not lockstep(model, second, x).parts
    assert torch.equal(torch.get_rng_state(), stream) and torch.equal(x, shown)
    assert all(torch.equal(state[name], each) for name, each in model.state_dict().items())
    assert all(torch.equal(state[name], each) for name, each in second.state_dict().items())


def test_the_result_is_short_and_has_fields() -> None:
    found = lockstep(gpt2(), mine_from_gpt2(gpt2(), "scale"), ids())
    assert found.parts and found.at is not None
    assert found.at.inputs is not None and found.at.inputs < 1e-6 < (found.at.outputs or 0)
    assert repr(found).startswith(
        "Lockstep(a | b: first differ in transformer.h.1.attn | layers.1.attention:"
    )
    assert "\n" not in repr(found) and len(repr(found)) < 250
    assert "no difference" in repr(lockstep(gpt2(), gpt2(), ids()))
    assert layerstep.Lockstep is type(found)


def test_a_tolerance_counts_for_everything() -> None:
    second = mine_from_gpt2(gpt2(), "scale")
    lines = ["lockstep model other --tol 0.5", "lockstep model, other --tol 1e-5"]
    told = typed(lines, second)
    assert "agree within 0.5" in told[lines[0]]
    assert "first differ in transformer.h.1.attn" in told[lines[1]]


def test_a_map_goes_before_what_is_found(tmp_path: Path) -> None:
    file = tmp_path / "map.txt"
    file.write_text("# the norms are exchanged\ntransformer.h.0.ln_1 = layers.0.norm_m\n\n")
    line = f"lockstep model other --map {file}"
    told = typed([line], mine_from_gpt2(gpt2()))[line]
    assert "transformer.h.*.ln_1" in told
    found = lockstep(gpt2(), mine_from_gpt2(gpt2()), ids(), map={"transformer.h.0.ln_1": "layers.0.norm_m"})
    assert ("transformer.h.0.ln_1", "layers.0.norm_m") in found.mapped
    assert ("transformer.h.0.ln_1", "layers.0.norm_a") not in found.mapped


@pytest.mark.parametrize(
    "line, says",
    [
        ("lockstep model", "lockstep needs two expressions or files"),
        ("lockstep model 3", "3 is no model; it is a int"),
        ("lockstep model nosuch.safetensors", "cannot read nosuch.safetensors"),
        ("lockstep model other --map nosuch.txt", "cannot read nosuch.txt"),
        ("lockstep model other --tol 0", "--tol"),
        ("lockstep transformer.h.0.mlp other", "is not in view"),
        ("lockstep model other --input 3.5", "neither can be run on this input"),
        ("lockstep save model run.txt", "it ends in .safetensors"),
    ],
)
def test_a_mistake_is_one_line(line: str, says: str) -> None:
    told = typed([line], mine_from_gpt2(gpt2()))[line]
    assert says in told and told.startswith("✗")


def test_a_bad_map_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "map.txt"
    file.write_text("a = b\nnonsense\n")
    line = f"lockstep model other --map {file}"
    assert "map.txt:2 is no" in typed([line], mine_from_gpt2(gpt2()))[line]
    with pytest.raises(UserError, match="calls no 'nosuch'"):
        lockstep(gpt2(), gpt2(), ids(), map={"nosuch": "lm_head"})


def test_the_other_model_takes_the_input_under_its_own_name() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mine_from_gpt2(gpt2())

        def forward(self, tokens: Tensor) -> Tensor:
            return self.inner(tokens)

    found = lockstep(gpt2(), Named().eval(), input_ids=ids(), use_cache=False)
    assert not found.parts and found.end is not None
    assert "Named does not take use_cache" in found.notes


def test_both_draw_the_same_random_numbers() -> None:
    model = copy.deepcopy(gpt2()).train()
    found = lockstep(model, copy.deepcopy(model), ids())
    assert found.end == 0.0
    assert "both draw random numbers, from the same state of the streams" in found.notes


def test_recordings_need_no_models(tmp_path: Path) -> None:
    files = [tmp_path / "right.safetensors", tmp_path / "wrong.safetensors", tmp_path / "other.safetensors"]
    typed([f"lockstep save model {files[0]}"], mine_from_gpt2(gpt2()))
    typed([f"lockstep save other {files[1]}"], mine_from_gpt2(gpt2(), "relu"))
    typed([f"lockstep save other {files[2]}"], mine_from_gpt2(gpt2()))
    found = lockstep(files[0], files[1])
    assert found.at is not None and found.at.a == "transformer.h.1.mlp.act"
    assert not lockstep(files[0], files[2]).parts
    found = lockstep(mine_from_gpt2(gpt2(), "scale"), files[0], ids())
    assert found.at is not None and found.at.b == "transformer.h.1.attn"
    found = lockstep(files[0], mine_from_gpt2(gpt2(), "scale"), ids())
    assert found.at is not None and found.at.a == "transformer.h.1.attn"


def test_a_wrong_weight_is_told_of_recordings_too(tmp_path: Path) -> None:
    files = [tmp_path / "right.safetensors", tmp_path / "wrong.safetensors"]
    typed([f"lockstep save model {files[0]}"], gpt2())
    typed([f"lockstep save other {files[1]}"], mine_from_gpt2(gpt2(), "weight"))
    assert [each.differing for each in lockstep(*files).weights] == [1]


def test_outputs_by_name_are_a_run(tmp_path: Path) -> None:
    torch.manual_seed(0)
    values = {"first": torch.randn(2, 8), "second": torch.randn(2, 8), "third": torch.randn(2, 4)}
    torch.save(values, tmp_path / "a.pt")
    torch.save({**values, "second": values["second"] + 0.1}, tmp_path / "b.pt")
    found = lockstep(tmp_path / "a.pt", tmp_path / "b.pt")
    assert found.at is not None and found.at.a == "second"
    assert not lockstep(tmp_path / "a.pt", tmp_path / "a.pt").parts


def test_a_core_file_is_a_run(tmp_path: Path) -> None:
    core = tmp_path / "stop.lscore"
    lines = ["record transformer.h.*.ln_1 --tensors", "until lm_head", f"dump {core}"]
    Typed(gpt2(), ids(), lines, where="transformer.wte")
    found = lockstep(mine_from_gpt2(gpt2()), core, ids())
    assert not found.parts
    assert ("layers.1.norm_a", "transformer.h.1.ln_1") in found.mapped
    found = lockstep(mine_from_gpt2(gpt2(), "tiny eps"), core, ids(), tol=1e-4)
    assert found.at is not None and found.at.a == "layers.1.norm_a"


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot read"):
        lockstep(file, file)
    with pytest.raises(UserError, match="wants models or files"):
        lockstep(3, file)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no call to take the input from"):
        lockstep(gpt2(), gpt2())


# --- eager against compiled ---


def broken(graph: Any, inputs: Any) -> Any:
    """A compiler with a fault: tanh becomes hardtanh."""
    for node in graph.graph.nodes:
        if node.target is torch.tanh or node.target == "tanh":
            node.op, node.target = "call_function", torch.nn.functional.hardtanh
    graph.recompile()
    return graph.forward


class Part(nn.Module):
    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(8, 16), act, nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.act(self.up(x)))


def parts() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Part(nn.Tanh() if at == 2 else nn.GELU()) for at in range(4)))


def test_the_part_that_the_compiler_broke() -> None:
    model = parts()
    compiled = torch.compile(model, backend=broken)
    found = lockstep(model, compiled, torch.randn(4, 8))
    assert found.at is not None and found.at.a == "2.act"
    assert not lockstep(model, torch.compile(model, backend="eager"), torch.randn(4, 8)).parts
    torch._dynamo.reset()


def test_a_difference_before_the_compiler_is_told_first() -> None:
    second = parts()
    second[1].act = nn.ReLU()
    found = lockstep(parts(), torch.compile(second, backend=broken), torch.randn(4, 8))
    assert found.at is not None and found.at.a == "1.act"
    assert "they differ without the compiler, too" in found.notes
    torch._dynamo.reset()


# --- a model that is first seen in a line of ours is still found when the program calls it ---


def test_a_model_that_lockstep_ran_first_is_found_later(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, layerstep\n"
        "model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())\n"
        "assert not layerstep.lockstep(model, model, torch.ones(2, 4)).parts\n"
        "model(torch.ones(2, 4))\n"
    )
    screen, _ = play(script, ["break 0", "continue", "p out.shape", "continue"])
    assert "torch.Size([2, 4])" in screen


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return quick_python.run(["-m", "layerstep", *words])


PROGRAM = """
import sys, torch
from torch import nn
torch.manual_seed(0)
act = nn.ReLU() if "wrong" in sys.argv else nn.GELU()
model = nn.Sequential(nn.Linear(4, 8), act, nn.Linear(8, 2))
print("not to be seen")
for step in range(3):
    model(torch.randn(5, 4, generator=torch.Generator().manual_seed(step)))
if "crash" in sys.argv:
    raise SystemExit(7)
"""


def saved(tmp_path: Path, *words: str, name: str = "run") -> Path:
    script, file = tmp_path / "program.py", tmp_path / f"{name}.safetensors"
    script.write_text(PROGRAM)
    done = run("diff", "--save", str(file), shlex.join([str(script), *words]))
    assert done.returncode == 0, done.stderr
    return file


def test_a_program_is_recorded_and_compared(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = str(saved(tmp_path, "wrong"))
    assert main(["diff", file, file]) == 0
    torch.manual_seed(0)
    right = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    found = lockstep(right, file, torch.randn(5, 4, generator=torch.Generator().manual_seed(0)))
    assert found.at is not None and found.at.kinds == ("GELU", "ReLU")
    capfd.readouterr()


@pytest.mark.long
def test_two_programs(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    done = run("diff", str(script), f"{script} wrong")
    assert done.returncode == 1, done.stderr
    text = " ".join((done.stdout + done.stderr).split())
    assert "GELU | ReLU" in text and "not to be seen" not in text
    assert run("diff", str(script), str(script), "--forward", "2").returncode == 0
    done = run("diff", str(script), f"{script} crash", "--forward", "9")
    assert done.returncode == 2 and "has ended without forward 9" in done.stderr


def test_programs_that_cannot_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    for words, says in (
        ((str(script),), "diff takes two programs"),
        ((str(script), str(tmp_path / "nosuch.py")), "cannot read"),
        ((str(script), str(script), "--tol", "-1"), "--tol a number above 0"),
        ((str(script), str(script), "--forward", "0"), "--forward takes a number from 1"),
    ):
        assert main(["diff", *words]) == 2
        assert says in capsys.readouterr().err


def test_a_model_of_complex_numbers_parts_from_one_of_real_numbers() -> None:
    class Turned(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.fft(x)

    found = lockstep(
        nn.Sequential(Turned(), nn.Identity()), nn.Sequential(nn.Tanh(), nn.Identity()), torch.ones(2, 4)
    )
    assert "first differ in 0" in repr(found)


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class RaisesNoText(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise NoText


class Nested(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nested.to_padded_tensor(x * 2, 0.0)


def test_a_side_may_raise_an_exception_without_text() -> None:
    found = lockstep(nn.Identity(), RaisesNoText(), torch.ones(2))
    assert found.parts and "NoText" in repr(found)


def test_nested_inputs_are_compared_too() -> None:
    x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])
    assert not lockstep(Nested(), Nested(), x).parts
