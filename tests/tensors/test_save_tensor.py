"""Tensors written to files and read again: any stride, shared memory, containers; and what is refused."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from layerstep import DebugConsole
from layerstep.demo.model import TinyTransformer
from layerstep.errors import UserError
from layerstep.tensors.files import FileReference, read_tensors, write_tensors
from layerstep.views import Notice

BASE = torch.arange(24, dtype=torch.float32).view(4, 6)

TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: BASE,
    "transposed": lambda: BASE.t(),
    "sliced": lambda: BASE[1:3, ::2],
    "expanded": lambda: BASE[0].expand(3, 6),
    "grad": lambda: BASE.clone().requires_grad_() * 2,
    "parameter": lambda: torch.nn.Parameter(BASE.clone()),
    "scalar": lambda: torch.tensor(3),
    "empty": lambda: torch.ones(0, 4),
    "bool": lambda: BASE > 3,
    "half": lambda: BASE.half(),
    "lazy": lambda: torch._lazy_clone(BASE),
    "negated": lambda: torch._neg_view(BASE),
}


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
@pytest.mark.parametrize("make", TENSORS.values(), ids=TENSORS)
def test_a_tensor_comes_back_as_it_was(make: Callable[[], torch.Tensor], suffix: str, tmp_path: Path) -> None:
    tensor, path = make(), tmp_path / f"x{suffix}"
    write_tensors({"x": tensor}, path)
    again = read_tensors(FileReference(str(path), path, ""))
    assert again.dtype == tensor.dtype and torch.equal(again, tensor.detach())
    assert [file.name for file in tmp_path.iterdir()] == [path.name], "nothing is left beside it"


def test_shared_memory_is_written_apart(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors({"all": BASE, "same": BASE, "row": BASE[1]}, path)
    found = load_file(path)
    assert torch.equal(found["all"], BASE) and torch.equal(found["same"], BASE)
    assert torch.equal(found["row"], BASE[1])


def test_a_file_that_the_run_has_mapped_may_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"x": BASE.clone()}, path)
    mapped = load_file(path)["x"]
    write_tensors({"x": mapped + 1}, path)
    assert torch.equal(mapped, BASE) and torch.equal(load_file(path)["x"], BASE + 1)


@pytest.mark.parametrize(
    ("tensor", "name", "said"),
    [
        (BASE.bfloat16(), "x.npy", "bf16, which numpy does not have"),
        (
            BASE.to_sparse(),
            "x.safetensors",
            "is sparse_coo; only dense tensors are written; try x.to_dense()",
        ),
        (BASE.to("meta"), "x.npy", "no values"),
        (BASE, "x.pt", ".pt is no format for this"),
        (BASE, "x", "no suffix is no format for this"),
        (BASE, "no/such/folder/x.npy", "cannot write"),
    ],
)
def test_what_cannot_be_written_is_refused_in_one_line(
    tensor: torch.Tensor, name: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as raised:
        write_tensors({"x": tensor}, tmp_path / name)
    assert said in str(raised.value) and "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_a_refused_write_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.ones(3))
    with pytest.raises(UserError):
        write_tensors({"a": BASE, "b": BASE}, path)
    assert np.load(path).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("text", "file", "key"),
    [
        ("x.npy", "x.npy", ""),
        ("a/b.safetensors:h.0.weight", "a/b.safetensors", "h.0.weight"),
        ("ckpt.pt:model.head", "ckpt.pt", "model.head"),
        ('"my file.npy"', "my file.npy", ""),
    ],
)
def test_references_to_files(text: str, file: str, key: str) -> None:
    found = FileReference.parse(text)
    assert found is not None and (str(found.path), found.key) == (file, key)


@pytest.mark.parametrize("text", ["out", "out.weight", "a b.npy", "x.npy + 1", "out[0]", ""])
def test_expressions_are_no_files(text: str) -> None:
    assert FileReference.parse(text) is None


def test_damaged_and_foreign_files_are_one_line(tmp_path: Path) -> None:
    for suffix in (".npy", ".safetensors", ".pt", ".pth"):
        path = tmp_path / f"bad{suffix}"
        path.write_bytes(b"this is no such file")
        with pytest.raises(UserError) as raised:
            read_tensors(FileReference(str(path), path, ""))
        assert "\n" not in str(raised.value)
    swapped = tmp_path / "big.npy"
    np.save(swapped, np.arange(3, dtype=">f4"))
    assert read_tensors(FileReference("", swapped, "")).tolist() == [0, 1, 2]


def answer(*lines: str) -> Notice:
    torch.manual_seed(0)
    model = TinyTransformer().eval()
    console = DebugConsole(model, commands=["break blocks.1.norm1", "continue", *lines], output=io.StringIO())
    messages: list[Any] = []
    console.session.listen(messages.append)
    with console:
        model(torch.randint(1, 64, (1, 5)))
    view = [message.view for message in messages if message.line == lines[-1]][-1]
    assert isinstance(view, Notice)
    return view


def test_the_command_writes_tensors_containers_and_modules(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert answer("save-tensor out out.npy").text == "f32[1, 5, 32] in out.npy, 768 B"
    assert np.load("out.npy").shape == (1, 5, 32)
    assert answer("save-tensor {'a': [out, out], 'b': inp} all.safetensors").level == "good"
    assert sorted(load_file("all.safetensors")) == ["a.0", "a.1", "b"]
    assert answer("save-tensor blocks.0.attn attn.safetensors").text.startswith("4 tensors in ")
    assert sorted(load_file("attn.safetensors")) == ["proj.bias", "proj.weight", "qkv.bias", "qkv.weight"]
    assert answer("save-tensor out + 1, sum.safetensors").level == "good"
    assert list(load_file("sum.safetensors")) == ["out + 1"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("save-tensor out", "needs a value and a file"),
        ("save-tensor 'text' x.npy", "no tensor in 'text'"),
        ("save-tensor blocks.0.attn x.npy", "holds one array, and these are 4"),
        ("save-tensor out.bfloat16() x.npy", "numpy does not have"),
    ],
)
def test_the_command_refuses_in_one_line(line: str, said: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    view = answer(line)
    assert view.level == "error" and said in view.text and not list(tmp_path.iterdir())
