"""Nothing may grow without bound, end a run at a limit, or take longer with time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import quick_python

SHORT_LIVED = """
    import gc, weakref, torch
    alive = []
    with torch.no_grad():
        for _ in range(60):
            model = torch.nn.Sequential(torch.nn.Linear(2, 2))
            alive.append(weakref.ref(model))
            model(torch.ones(1, 2))
    gc.collect()
    print(sum(each() is not None for each in alive))
"""


def run(path: Path, text: str, *lines: str) -> subprocess.CompletedProcess[str]:
    script = path / "train.py"
    script.write_text(dedent(text))
    given = [part for line in lines for part in ("-e", line)]
    words = ["-m", "layerstep", "run", "--batch", *given, "-e", "continue", script]
    return quick_python.run(words, cwd=path)


@pytest.mark.parametrize("line", ["catch nonfinite", pytest.param("memory on", marks=pytest.mark.long)])
def test_models_that_the_program_drops_are_let_go(tmp_path: Path, line: str) -> None:
    """A model for each step: an instrument keeps few of them alive, and few are announced."""
    done = run(tmp_path, SHORT_LIVED, line)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 10
    assert done.stderr.count("found Sequential") == 20
    assert done.stderr.count("without a word") == 1


@pytest.mark.long
def test_more_models_than_are_taken_in_are_said_once(tmp_path: Path) -> None:
    text = """
        import torch
        layers = [torch.nn.Linear(2, 2) for _ in range(300)]
        with torch.no_grad():
            for layer in layers:
                layer(torch.ones(1, 2))
    """
    done = run(tmp_path, text, "break ** if False")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("256 models are alive") == 1
    assert "reached 256 times" in done.stderr


def test_exceptions_that_the_program_handles_are_explained_for_a_bounded_time(tmp_path: Path) -> None:
    text = """
        import torch
        from layerstep.crashes import catching as crashes
        crashes.MOST_SECONDS = 0.0
        model = torch.nn.Linear(2, 2)
        noted = 0
        for _ in range(30):
            try:
                model(torch.ones(1, 3))
            except RuntimeError as error:
                noted += hasattr(error, "__notes__")
        print(noted)
        model(torch.ones(1, 3))
    """
    done = run(tmp_path, text)
    assert done.stdout == "1\n"
    assert done.returncode == 1
    assert "Linear(2→2)" in done.stderr, "the exception that ends the run is explained all the same"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_measuring_a_tensor_under_a_memory_limit_does_not_end_the_run(tmp_path: Path) -> None:
    """OpenBLAS ends the process where it cannot reserve its own memory."""
    text = """
        import resource, torch
        torch.set_num_threads(1)
        model = torch.nn.Linear(1, 256)
        with torch.no_grad():
            model(torch.ones(8, 1))
            values = torch.ones(1024, 1)
            used = int(open("/proc/self/statm").read().split()[0]) * 4096
            resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20), resource.RLIM_INFINITY))
            model(values)
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print("done")
    """
    done = run(tmp_path, text, "record **")
    assert done.stdout == "done\n", done.stderr
    assert done.returncode == 0
