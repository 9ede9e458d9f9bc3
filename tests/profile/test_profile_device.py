"""`profile` on an accelerator: a stand-in that torch takes for one, in processes of their own.

Its kernels take as long as `toy/toy_device.py` says, so each time here is worked out by hand. What is
driven is the way to the times; that the events of real hardware tell the truth is not tested here.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import quick_python

TOY = Path(__file__).parents[1] / "support" / "toy"
BEGIN = f"""
import json, sys
sys.path.insert(0, {str(TOY)!r})
import torch, toy_device as toy
from torch import nn
import layerstep
from layerstep import DebugConsole
from layerstep.profile.state import state_of
from layerstep.profile import steps as profile_steps
from layerstep.render.screen import to_text

def step(model, x):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

def small(index=0):
    return nn.Sequential(toy.move(nn.Linear(4, 8), index), nn.ReLU(), toy.move(nn.Linear(8, 4), index))

def rows(measured):
    return {{row.path: [1e3 * min(each) for each in (row.forward, row.backward)] for row in measured.rows}}
"""


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library of `guard.cpp`; it takes some seconds to compile."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    include = Path(torch.__file__).parent / "include"
    if compiler is None or not (include / "c10").is_dir():
        pytest.skip("no compiler for C++")
    target = tmp_path_factory.mktemp("toy") / "libtoy.so"
    libraries = ["-L", str(Path(torch.__file__).parent / "lib"), "-lc10"]
    made = [compiler, "-shared", "-fPIC", "-std=c++20", "-I", str(include), "-o", str(target)]
    done = subprocess.run([*made, str(TOY / "guard.cpp"), *libraries], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return str(target)


def on_toy(script: str) -> dict[str, Any]:
    """The answer that a script prints as its last line."""
    done = quick_python.run(["-c", BEGIN + textwrap.dedent(script)])
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


PROFILE = """
    toy.register({register})
    model, x = small(), toy.on_toy(torch.ones(3, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    console = DebugConsole(model)
    waits = []
    with console:
        console.execute("profile 3")
        for _ in range(6):
            before = toy.clocks.waits()
            step(model, x)
            waits.append(toy.clocks.waits() - before)
        before = toy.clocks.waits()
        report, again = (to_text(console.execute("profile report")) for _ in range(2))
        waits.append(toy.clocks.waits() - before)
        advice = to_text(console.execute("profile advice"))
        measured = state_of(console.session).measured()
        trace = [(time.begin, time.end) for time in measured.times]
    print(json.dumps(dict(rows=rows(measured), waits=waits, report=report, steps=measured.steps,
        advice=advice, trace=trace, own_flops=measured.row("0").own_flops)))
"""
BY_HAND = {"0": [5, 7 + 4], "1": [1, 2], "2": [5, 2 * 7 + 4], "loss": [4, 0], "Sequential": [0, 0]}
"""Milliseconds: products and the sums for the bias; the input of the first layer needs no gradient."""


@pytest.mark.parametrize("way", ["torch.Event", pytest.param("Event of the module", marks=pytest.mark.long)])
def test_the_times_are_those_of_the_devices_events(way: str, request: pytest.FixtureRequest) -> None:
    register = repr(request.getfixturevalue("guard")) if way == "torch.Event" else "None"
    found = on_toy(PROFILE.format(register=register))
    for path, (forward, backward) in BY_HAND.items():
        assert found["rows"][path] == pytest.approx([forward, backward], abs=1e-3), path
    assert found["steps"] == pytest.approx([0.046] * 3)
    assert "3 training steps  on toy:0" in found["report"] and "by its events" in found["report"]
    assert "not taken out" in found["report"] and "FLOP/s" in found["report"]
    assert found["waits"] == [1, 0, 0, 0, 0, 0, 1], "once to try its events, once to read them all"
    ends = [end for _, end in found["trace"]]
    assert all(begin >= end for (begin, _), end in zip(found["trace"][1:], ends, strict=False))
    assert "float32" not in found["advice"], "it cannot be probed here, and nothing is claimed of it"


def test_a_device_that_times_no_events_has_times_of_the_host_and_says_so() -> None:
    found = on_toy(PROFILE.format(register="None, with_event=False"))
    assert "on toy:0" in found["report"] and "these are times of the host" in found["report"]
    assert found["own_flops"] == 0, "how fast a device is cannot be told from the host's times"
    assert found["rows"]["optimizer"][0] > 0 and sum(found["waits"]) == 0


@pytest.mark.long
def test_of_several_devices_the_one_with_most_weights_tells_the_time(guard: str) -> None:
    found = on_toy(f"""
        toy.register({guard!r})

        class Spread(nn.Module):
            def __init__(self):
                super().__init__()
                self.first = toy.move(nn.Linear(4, 8), 0)
                self.large = toy.move(nn.Linear(8, 64), 1)
                self.host = nn.Linear(64, 4)

            def forward(self, x):
                x = self.large(self.first(x).to("toy:1"))
                return self.host(x.to("cpu"))

        model, x = Spread(), toy.on_toy(torch.ones(3, 4))
        console = DebugConsole(model)
        with console, torch.no_grad():
            console.execute("profile 2")
            for _ in range(5):
                model(x)
            report = to_text(console.execute("profile report"), width=300)
            measured = state_of(console.session).measured()
        assert torch.accelerator.current_device_index() == 0
        print(json.dumps(dict(rows=rows(measured), report=report, device=measured.device)))
    """)
    assert found["device"] == "toy:1"
    assert found["rows"]["large"][0] == pytest.approx(5) and found["rows"]["first"][0] == 0
    assert "first on toy:0: timed as far as toy:1 waits for it" in found["report"]
    assert "host on cpu: timed as far as toy:1 waits for it" in found["report"]


@pytest.mark.long
def test_a_model_that_is_found_later_is_timed_by_its_device_and_events_are_let_go() -> None:
    found = on_toy("""
        toy.register(None)
        profile_steps.MOST_EVENTS = 60
        with layerstep.profiling() as profiler:  # no model is known yet
            model, x = small(), toy.on_toy(torch.ones(3, 4))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(12):
                step(model, x)
            steps = profiler._state.profile.steps
            alive = sum(len(each.marks) for each in steps if not each.is_read)
            waits = toy.clocks.waits()
        report = profiler.report()
        seconds = report.layer("0").forward
        print(json.dumps(dict(alive=alive, waits=waits, steps=report.steps, seconds=seconds)))
    """)
    assert found["alive"] <= 60 and found["waits"] == 1
    assert found["steps"] == 11 and found["seconds"] == pytest.approx(0.005)
