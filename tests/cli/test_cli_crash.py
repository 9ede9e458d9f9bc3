"""Crashes under `layerstep run`: what is printed, where it goes, and the exit codes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import layerstep
import quick_python

OURS = str(Path(layerstep.__file__).parent)
NET = """\
import torch
from torch import nn

net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(9, 2))
"""
UNCAUGHT = NET + "print('begins')\nnet(torch.ones(1, 4))\nprint('never')\n"
HANDLED = (
    NET
    + """\
import traceback
try:
    net(torch.ones(1, 4))
except RuntimeError as error:
    print("handled", error.args)
    traceback.print_exc()
"""
)
CAUSE = "Linear(9→2) got [1, 8]: last dimension is 8, weight wants 9"
NOTE = f"layerstep: in 2 (Linear): {CAUSE}"


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def start(text: str, *options: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        script.write_text(text)
        clean = {k: v for k, v in os.environ.items() if k not in ("CI", "TERM")}
        return quick_python.run(
            ["-m", "layerstep", "run", *options, script],
            input=typed,
            env={**clean, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1", "COLUMNS": "120"},
        )

    return start


def test_in_batch_the_explanation_is_printed_and_the_exit_code_is_the_scripts(run):
    done = run(UNCAUGHT, "--batch")
    assert done.returncode == 1
    assert done.stdout == "begins\n"
    assert done.stderr.index(f"✗ {CAUSE}") < done.stderr.index("Traceback") < done.stderr.index(NOTE)
    assert OURS not in done.stderr


def test_a_catchpoint_in_batch_is_exit_code_3_though_the_script_handles_it(run):
    done = run(HANDLED, "--batch", "-e", "catch exception RuntimeError")
    assert done.returncode == 3
    assert "handled ('mat1 and mat2 shapes cannot be multiplied (1x8 and 9x2)',)" in done.stdout
    assert "2  raised RuntimeError  Linear  forward 1  catch 1" in done.stderr
    silent = run(HANDLED, "--batch", "-e", "catch exception KeyError")
    assert silent.returncode == 0 and "raised" not in silent.stderr


@pytest.mark.long
def test_the_lines_that_are_left_are_taken_at_the_crash(run):
    done = run(UNCAUGHT, "--batch", "-e", "continue", "-e", "where", "-e", "p inp.shape")
    assert done.returncode == 1
    assert "(layerstep) where\n→ 0  2  Linear  raised" in done.stderr and "torch.Size([1, 8])" in done.stderr


def test_at_the_prompt_the_run_stops_before_the_handler_and_goes_on_to_it(run):
    done = run(HANDLED, typed="continue\nwhere\ncontinue\n")
    assert done.returncode == 0
    assert "2  raised RuntimeError  Linear  forward 1" in done.stderr
    assert "handled (" in done.stdout
    assert NOTE in done.stderr, "the program's own traceback has the note"


@pytest.mark.long
def test_a_traceback_that_the_program_prints_itself_shows_no_frame_of_ours(run):
    done = run(HANDLED, "--batch")
    assert "Traceback" in done.stderr and OURS not in done.stderr


@pytest.mark.long
def test_a_crash_that_the_script_wraps_stops_once(run):
    wrapped = HANDLED.replace(
        '    print("handled", error.args)\n', "    raise SystemError('training failed')\n"
    )
    done = run(wrapped, typed="continue\ncontinue\ncontinue\n")
    assert done.returncode == 1
    assert done.stderr.count("raised RuntimeError") == 1 and "raised SystemError" not in done.stderr
    assert "SystemError: training failed" in done.stderr and NOTE in done.stderr


def test_quit_at_the_crash(run):
    done = run(UNCAUGHT, typed="continue\nquit\n")
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_an_error_outside_of_modules_is_explained_in_the_frame_of_the_script(run):
    text = "import torch\nloss = torch.ones(3, requires_grad=True) * 2\nloss.backward()\n"
    done = run(text, typed="continue\nwhere\nloss.shape\nlist\ncontinue\n")
    assert done.returncode == 1
    assert "✗ loss.backward(): the loss is [3], no scalar" in done.stderr
    assert "torch.Size([3])" in done.stderr and "→ 3  loss.backward()" in done.stderr
    assert done.stderr.count("raised RuntimeError") == 1


@pytest.mark.long
def test_an_exception_in_a_backward_hook_is_shown_where_it_was_raised(run):
    text = (
        "import torch\nx = torch.ones(2, requires_grad=True)\ny = x * 2\n"
        "def hook(gradient):\n    wrong = gradient.view(3)\n    return "
        "wrong\ny.register_hook(hook)\ny.sum().backward()\n"
    )
    done = run(text, typed="continue\ngradient.shape\nlist\ncontinue\n")
    assert done.returncode == 1
    assert "gradient.view(3): [2] is 2 values, [3] needs 3" in done.stderr
    assert "torch.Size([2])" in done.stderr and "→ 5      wrong = gradient.view(3)" in done.stderr


def test_the_in_place_write_is_named_if_catch_exception_was_set(run):
    text = (
        NET.replace("Linear(9", "Linear(8")
        + "out = net(torch.ones(1, 4)).exp()\nout.mul_(2)\nout.sum().backward()\n"
    )
    done = run(text, "--batch", "-e", "catch exception")
    assert done.returncode == 3
    assert "by mul_ at script.py:6" in done.stderr.replace("\n", " ").replace("  ", " ")


def test_post_mortem_runs_bare_and_opens_the_prompt_at_the_crash(run):
    text = "from torch import nn\nprint(nn.Module.__call__.__module__)\n" + UNCAUGHT
    done = run(text, "--post-mortem", typed="where\nup\nlist\ncontinue\n")
    assert done.returncode == 1
    assert done.stdout == "torch.nn.modules.module\nbegins\n"
    assert f"✗ {CAUSE}" in done.stderr and "→ 0  2  Linear  raised" in done.stderr
    assert done.stderr.rindex("Traceback") > done.stderr.index("(layerstep) list")


@pytest.mark.long
def test_post_mortem_without_anybody_prints_the_explanation(run):
    done = run(UNCAUGHT, "--post-mortem", "--batch")
    assert done.returncode == 1
    assert f"✗ {CAUSE}" in done.stderr and NOTE in done.stderr


@pytest.mark.long
def test_post_mortem_of_a_run_without_a_crash_says_nothing(run):
    done = run("print('fine')\n", "--post-mortem", typed="where\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")


def test_the_crash_is_in_the_json(run, tmp_path):
    file = tmp_path / "views.jsonl"
    run(UNCAUGHT, "--batch", "--json", str(file))
    views = [json.loads(line) for line in file.read_text().splitlines()]
    assert any(CAUSE in json.dumps(view, ensure_ascii=False) for view in views)
