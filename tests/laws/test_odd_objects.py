"""Models of odd names and values of odd manners: every command answers, and the run goes on."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from layerstep import DebugConsole

NAMES = [
    "a b",
    "q'uote",
    'd"q',
    "tree",
    "ünï",
    "名前",
    "a|b",
    "*",
    "[x]",
    "/r/",
    "$1",
    "#c",
    "x\ny",
    "0" * 500,
    "nan",
]
LINES = [
    "tree",
    "where",
    "inspect mod",
    "inspect out",
    "p inp",
    "p kwargs",
    "info breaks",
    "weights",
    "ops",
    "again",
]


class Raising:
    """Whatever it is asked, it raises."""

    def __repr__(self) -> str:
        raise RuntimeError

    def __len__(self) -> int:
        raise RuntimeError

    def __bool__(self) -> bool:
        raise RuntimeError

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, more: Any = None) -> torch.Tensor:
        return self.inner(x)


class Guarded(Net):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "inner":
            return super().__getattr__(name)
        raise RuntimeError(name)


class Mute(Net):
    def __repr__(self) -> str:
        raise RuntimeError

    extra_repr = __repr__

    def __len__(self) -> int:
        raise RuntimeError


class Rows(dict[str, torch.Tensor]):
    """As a TensorDict: to iterate means its rows, and there are none."""

    def __iter__(self) -> Any:
        raise StopIteration


class Closed(Rows):
    def items(self) -> Any:
        raise RuntimeError


def told(model: nn.Module, **more: Any) -> str:
    out = io.StringIO()
    lines = "\n".join([*LINES, "step", *LINES]) + "\n"
    with DebugConsole(model, input=io.StringIO(lines), output=out) as console:
        console.execute("break **")
        model(torch.ones(1, 2), **more)
    return out.getvalue()


def odd_names() -> nn.Module:
    model = nn.Sequential()
    for name in [*NAMES, "0" * 500, "nan"]:
        model.add_module(name, nn.Linear(2, 2))
    return model


@pytest.mark.parametrize("make", [odd_names, Guarded, Mute, nn.Identity, nn.Sequential])
def test_a_model_of_odd_manners(make: Any) -> None:
    said = told(make())
    assert "a bug in layerstep" not in said and "the prompt failed" not in said


def test_a_value_that_raises_whatever_it_is_asked() -> None:
    said = told(Net(), more=Raising())
    assert "a bug in layerstep" not in said and "Net  done" in said


def test_leaves_that_keep_what_has_no_hash_are_compared() -> None:
    model = nn.Sequential(*(nn.Identity() for _ in range(9)))
    for leaf in model:
        leaf.kept = ({},)  # type: ignore[assignment]
    out = io.StringIO()
    DebugConsole(model, output=out).execute("tree")
    assert "9 × Identity" in out.getvalue()


@pytest.mark.parametrize("kind", [Rows, Closed])
def test_a_mapping_that_is_not_iterated_by_its_keys_is_dumped(kind: type[Rows], tmp_path: Path) -> None:
    out, model, core = io.StringIO(), Net(), tmp_path / "stop.lscore"
    with DebugConsole(model, input=io.StringIO(f"dump {core}\n"), output=out) as console:
        console.execute("break inner")
        model(torch.ones(1, 2), more=kind(x=torch.ones(3)))
    assert core.exists() and "a bug in layerstep" not in out.getvalue(), out.getvalue()
