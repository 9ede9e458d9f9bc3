"""Other signals at the prompt of a real terminal."""

from __future__ import annotations

import os
import signal

import pytest
from test_terminal import Open, open_terminal, script  # noqa: F401 - fixtures

pytestmark = [
    pytest.mark.xdist_group("terminal"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


@pytest.mark.parametrize("name", ["SIGTERM", pytest.param("SIGHUP", marks=pytest.mark.long)])
def test_a_signal_that_ends_the_process_leaves_the_terminal_as_it_was(
    open_terminal: Open,  # noqa: F811
    script,  # noqa: F811
    name: str,
):
    terminal = open_terminal("run", script("net(torch.ones(1, 4))\n"))
    terminal.until_prompt()
    terminal.ask("break 1")
    assert "1  done  Tanh" in terminal.ask("continue")
    os.kill(terminal.child.pid, signal.Signals[name])
    terminal.end()
    assert terminal.child.signalstatus == signal.Signals[name]


def test_ctrl_c_in_the_pager_leaves_the_pager_only(open_terminal: Open, script):  # noqa: F811
    # One process that numbers lines and waits for keys: a shell that starts a command can lose a Ctrl-C.
    path = script("net(torch.ones(1, 4))\nprint('finished')\n")
    terminal = open_terminal("run", path, PAGER="cat -n - /dev/tty")
    terminal.until_prompt()
    terminal.ask("break 1")
    terminal.ask("continue")
    terminal.keys("help\r")  # more lines than the terminal has
    terminal.until(r" 31\t")
    terminal.child.sendintr()
    terminal.until_prompt()
    assert "42" in terminal.ask("6 * 7")
    terminal.keys("continue\r")
    code, rest = terminal.end()
    assert code == 0 and "finished" in rest
