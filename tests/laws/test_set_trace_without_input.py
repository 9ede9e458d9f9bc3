"""`set_trace()` where nobody can be asked says so in one line, once, and the program goes on."""

from __future__ import annotations

import quick_python

PROGRAM = """
import layerstep
for number in range(3):
    layerstep.set_trace()
    print("went on", number)
"""


def test_set_trace_without_a_terminal_goes_on() -> None:
    done = quick_python.run(["-c", PROGRAM])
    assert done.returncode == 0 and done.stdout.count("went on") == 3
    assert done.stderr.count("no terminal to ask at, so the run goes on") == 1
    assert "Traceback" not in done.stderr
