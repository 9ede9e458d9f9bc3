"""A quick process is what `subprocess` would start: files, folder, environment, end and code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import quick_python
from going_back import in_session

TELLS = """\
import atexit, os, sys
atexit.register(print, "at exit")
print(sys.argv[1:], os.getcwd(), os.environ.get("GIVEN"), os.environ.get("LAYERSTEP_CONFIG"), __name__)
print(sys.stdin.read(), sys.stdin.isatty(), sys.path[0], sys.stdout.name, sys.stderr.errors)
print("to the other", file=sys.stderr)
"""
ENDS = {
    "a code": "sys.exit(7)",
    "a text": "sys.exit('why')",
    "a signal": "os.kill(os.getpid(), 15)",
    "Ctrl-C": "raise KeyboardInterrupt",
    "at once": "os._exit(3)",
    "a thread": "import threading; threading.Timer(0.01, print, ['late']).start()",
}


@pytest.mark.parametrize("end", ENDS)
def test_it_is_as_any_other(tmp_path: Path, end: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(TELLS + ENDS[end])
    words, env = [str(script), "a", "--b"], {"GIVEN": "x", "PATH": os.environ["PATH"]}
    quick = quick_python.run(words, input="typed", cwd=tmp_path, env=env)
    real = subprocess.run(
        [sys.executable, *words], input="typed", capture_output=True, text=True, cwd=tmp_path, env=env
    )
    assert (quick.returncode, quick.stdout) == (real.returncode, real.stdout)
    ours = [line for line in quick.stderr.splitlines() if "<frozen quick_python>" not in line]
    assert ours == real.stderr.splitlines()


def test_its_processes_are_found_by_their_session() -> None:
    its_in, ours = os.pipe()
    out, its_out = os.pipe()
    code = "import os, sys; os.fork(); print('here', flush=True); sys.stdin.read()"
    started = quick_python.start(["-c", code], (its_in, its_out, 2), new_session=True)
    os.close(its_in), os.close(its_out)
    with open(out) as shown:
        assert [shown.readline(), shown.readline()] == ["here\n"] * 2
        assert len(in_session(started.pid)) == 2
        os.killpg(started.pid, signal.SIGTERM)
    os.close(ours)
    assert started.wait() == -signal.SIGTERM
