"""onnx.checker and onnxruntime read the files of `export model.onnx`, and the run does not notice."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

from graph_models import usual_models
from zoo import console_on, differences, entry_named, global_state, hook_count, play, taps_on


def exported(model: nn.Module, inputs: tuple[Tensor, ...], where: str, file: Path) -> str:
    console, seen = console_on(model, [f"break {where}", "continue", f"export {file}", "continue"])
    console.run(*inputs)
    assert seen.bugs == [] and not taps_on(model)
    return " ".join(seen.text.split())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["resnet", "unet", "recurrent", "experts"])
def test_the_file_gives_what_the_model_gives(name: str, training: bool, tmp_path: Path) -> None:
    model, inputs = usual_models()[name]
    model.train(training)
    last = [path for path, part in model.named_modules() if not list(part.children())][-1]
    file = tmp_path / "model.onnx"
    said = exported(model, inputs, last, file)
    assert model.training is training
    found = re.search(r"onnxruntime differs from the model by ([\d.e+-]+) at most", said)
    assert found is not None, said
    assert float(found[1]) < 1e-4
    read = onnx.load(file)
    onnx.checker.check_model(read)
    scopes = {p.value for node in read.graph.node for p in node.metadata_props if "name_scopes" in p.key}
    parts = {path for path, _ in model.named_modules() if path}
    assert any(f"'{path}'" in scope for path in parts for scope in scopes), "Netron shows the modules"


@pytest.mark.parametrize(
    ("name", "mode"), [("gpt2", "train"), ("encoder", "frozen"), ("statistics", "train")]
)
def test_a_run_is_the_same_with_and_without(name: str, mode: str, tmp_path: Path) -> None:
    entry = entry_named(name)
    bare = play(entry, mode)
    before = global_state()
    lines = [
        f"break {entry.inner}",
        "continue",
        f"export {tmp_path}/a.onnx",
        "perturbed?",
        "delete",
        "continue",
    ]
    run = play(entry, mode, lines)
    assert "written to" in run.seen.text, run.seen.text
    assert differences(bare.state, run.state) == []
    assert run.seen.bugs == [] and not run.seen.is_perturbed
    assert not taps_on(run.model) and hook_count(run.model) == hook_count(bare.model)
    assert global_state() == before


class Bessel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(self.layer(x))


class Choosing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        if out.sum() > 0:
            return out
        return -out


def line_with(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.mark.parametrize(
    ("model", "why", "line"),
    [
        (Bessel(), "there is no ONNX operator for prims.bessel_j0", "return torch.special.bessel_j0("),
        (Choosing(), "the program decides by a value of a tensor", "if out.sum() > 0:"),
    ],
)
def test_what_hinders_is_named_in_one_line(model: nn.Module, why: str, line: str, tmp_path: Path) -> None:
    said = exported(model, (torch.ones(2, 4),), "layer", tmp_path / "a.onnx")
    assert f"✗ the model cannot become ONNX: {why}" in said, said
    assert f"({Path(__file__).name}:{line_with(line)})" in said, said
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerstep.graph.onnx_model.find_spec", lambda name: None)
    model = nn.Sequential(nn.Linear(4, 4))
    said = exported(model, (torch.ones(2, 4),), "0", tmp_path / "a.onnx")
    assert "it was not run: onnxruntime is not installed" in said
