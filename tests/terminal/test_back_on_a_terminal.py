"""`back step` on a real terminal: the prompt goes on in another process, and the shell sees one program."""

from __future__ import annotations

import contextlib
import sys
import uuid
from pathlib import Path

import pexpect
import pytest
from test_terminal import CTRL_C, UP, Open, open_terminal  # noqa: F401 - a fixture

from going_back import MARK, TRAIN, processes, run, wait_until_gone

pytestmark = [
    pytest.mark.xdist_group("terminal"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="checkpoints need Linux"),
]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAIN.replace("step < 14", "step < 14 or len(sys.argv) > 1"))
    return path


def test_the_prompt_goes_back_and_ctrl_c_stops_the_run(open_terminal: Open, script: Path):  # noqa: F811
    mark = uuid.uuid4().hex
    terminal = open_terminal("run", script, "for ever", fresh=True, **{MARK: mark})
    terminal.until_prompt()
    terminal.ask("history on")
    terminal.ask("until step 9")
    assert "at the beginning of step 7; 3 steps back" in terminal.ask("back step 3")
    assert "at the beginning of step 5; 2 steps back" in terminal.ask("back step 2")
    terminal.type(UP, "back step 2")  # the lines typed in the process that was left
    terminal.keys(CTRL_C)
    terminal.until_prompt()
    terminal.keys("continue\r")
    terminal.until("step 12 ")
    terminal.child.sendintr()
    assert "stopping at the next module" in terminal.until_prompt()
    assert "back" in terminal.ask("history")
    terminal.keys("quit\r")
    code, _ = terminal.end()
    assert code == 130
    assert not processes(mark)


@pytest.mark.long
def test_the_end_is_that_of_the_bare_run(open_terminal: Open, script: Path):  # noqa: F811
    mark = uuid.uuid4().hex
    terminal = open_terminal("run", script, OMP_NUM_THREADS="2", fresh=True, **{MARK: mark})
    terminal.until_prompt()
    terminal.ask("history on keep 6")
    terminal.ask("until step 11")
    for count in range(1, 9):
        for _ in range(2):
            terminal.ask(f"back step {count}")
            terminal.ask("until step 11")
    terminal.keys("continue\r")
    code, shown = terminal.end()
    assert code == 7 and f"end {run(script, None).end}" in shown.replace("\n", "")
    assert not processes(mark)


@pytest.mark.long
def test_closing_the_terminal_leaves_no_process(open_terminal: Open, script: Path):  # noqa: F811
    mark = uuid.uuid4().hex
    terminal = open_terminal("run", script, "for ever", fresh=True, **{MARK: mark})
    terminal.until_prompt()
    terminal.ask("history on")
    terminal.ask("until step 5")
    terminal.ask("back step 2")
    assert processes(mark)
    with contextlib.suppress(pexpect.ExceptionPexpect):  # it does not wait until the run has ended
        terminal.child.close(force=False)
    wait_until_gone(mark)
