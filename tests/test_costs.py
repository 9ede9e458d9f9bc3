"""Planted costs: `profile` finds each and names its line. The effects are huge, so nothing flakes."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from layerstep.analysis.advice import Evidence, advise
from layerstep.analysis.profile_state import state_of
from layerstep.analysis.roofline import Roofline
from zoo import console_on

COSTS = Path(__file__).parent.parent / "examples" / "costs"
PLANTED = {
    "slow_loop": ("python-loop", "state = 0.9 * state"),
    "item_sync": ("sync", ".item()"),
    "starving": ("waiting-for-data", "time.sleep(0.01)"),
    "quadratic": ("quadratic", "scores = q @ k"),
}


def test_every_cost_has_a_row_here() -> None:
    assert {path.stem for path in COSTS.glob("*.py")} >= set(PLANTED)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_cost_is_found_with_its_line(name: str) -> None:
    script = COSTS / f"{name}.py"
    command = [sys.executable, "-m", "layerstep", "run", "--batch", "-e", "profile 3 --advice", str(script)]
    environment = {"OMP_NUM_THREADS": "1", "COLUMNS": "300"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**_inherited(), **environment}
    )
    rule, code = PLANTED[name]
    numbers = [n for n, line in enumerate(script.read_text().splitlines(), start=1) if code in line]
    found = [block for block in done.stderr.split("\n") if f"{script.name}:{numbers[0]}" in block]
    assert found, done.stderr
    assert f"\n{rule}" in done.stderr, done.stderr
    assert "loss" in done.stdout


def _inherited() -> dict[str, str]:
    import os

    return {key: value for key, value in os.environ.items() if key not in ("LAYERSTEP", "COLUMNS")}


def _evidence(
    model: nn.Module, x: Tensor, *, roofline: Roofline | None = None, train: bool = False
) -> Evidence:
    console, _ = console_on(model, [])
    with console:
        console.execute("profile 2")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0) if train else None
        for _ in range(5):
            out = model(x)
            if optimizer is not None:
                out.sum().backward()
                optimizer.step()
        console.execute("profile off")
        state = state_of(console.session)
        return Evidence(state.measured(), state.looked, state.profile.lines, roofline)


def names(evidence: Evidence) -> set[str]:
    return {advice.name for advice in advise(evidence)}


class Attention(nn.Module):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
        if self.fused:
            return nn.functional.scaled_dot_product_attention(q, k, v)
        return (q @ k.transpose(-2, -1) / math.sqrt(16)).softmax(dim=-1) @ v


def test_attention_that_is_written_out_is_told_from_the_fused_kernel() -> None:
    x = torch.randn(2, 96, 32)
    assert "unfused-attention" in names(_evidence(Attention(fused=False), x))
    assert "unfused-attention" not in names(_evidence(Attention(fused=True), x))


def test_subnormal_values_are_found() -> None:
    class Fading(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 1e-39

    assert "denormals" in names(_evidence(nn.Sequential(Fading()), torch.rand(64, 64)))
    assert "denormals" not in names(_evidence(nn.Sequential(nn.ReLU()), torch.rand(64, 64)))


def test_a_layer_is_slow_only_against_what_the_machine_reaches() -> None:
    model, x = nn.Sequential(nn.Linear(256, 256)), torch.randn(256, 256)
    modest = Roofline(1e6, 1e12, 1)
    assert "slow-layer" not in names(_evidence(model, x, roofline=modest))
    found = _evidence(model, x)
    middle = sorted(found.measured.row("0").forward)[0]  # type: ignore[union-attr]
    reach = 2 * 256**3 / middle * 1000
    known = Evidence(found.measured, found.looked, found.lines, Roofline(reach / 100, 1e18, 1))
    assert [a.path for a in advise(known) if a.name == "slow-layer"] == ["0"]


def test_what_a_device_only_would_need_is_silent_on_a_processor() -> None:
    model = nn.Sequential(nn.Linear(64, 64))
    assert "float32" not in names(_evidence(model, torch.randn(8, 64), train=True))


def test_a_tensor_asked_for_its_truth_is_a_sync() -> None:
    class Asks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.sum() > 0:
                return x * 2
            return x * int(x.argmax())

    found = [a for a in advise(_evidence(nn.Sequential(Asks()), torch.ones(2, 2))) if a.name == "sync"]
    assert len(found) == 1 and "`if` on a tensor" in found[0].says
    assert found[0].place.text == "if x.sum() > 0:"


def test_a_model_with_nothing_wrong_hears_nothing_of_lines() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    assert not names(_evidence(model, torch.randn(256, 64), train=True)) & {
        "python-loop",
        "sync",
        "quadratic",
        "unfused-attention",
        "denormals",
    }


def test_a_model_that_cannot_be_run_again_still_has_times() -> None:
    class Once(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.calls: set[int] = set()

        def forward(self, x: Tensor) -> Tensor:
            if torch.is_grad_enabled():
                return self.linear(x)  # type: ignore[no-any-return]
            raise RuntimeError("only with gradients")

    found = _evidence(Once(), torch.ones(1, 2), train=True)
    assert "only with gradients" in found.looked.trouble
    assert found.measured.row("linear") is not None and len(found.measured.steps) == 2
