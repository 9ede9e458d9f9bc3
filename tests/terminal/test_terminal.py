"""A real terminal: keys, signals, progress bars, and the state in which the terminal is left."""

from __future__ import annotations

import os
import re
import stat
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

import layerstep
from quick_terminal import QuickSpawn

pytestmark = [
    pytest.mark.xdist_group("terminal"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

OURS = str(Path(layerstep.__file__).parent)
DEMO = Path(OURS) / "demo" / "script.py"
SECONDS = 250
PROMPT = r"\x1b\[\?2004h.*?\(layerstep\) "
"""Bracketed paste is switched on once for each prompt, however often that is drawn."""
DUMB_PROMPT = r"\(layerstep\) "
UP, TAB, CTRL_C, CTRL_D, CTRL_R = "\x1b[A", "\t", "\x03", "\x04", "\x12"

SMALL = """\
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
"""
"""The beginning of most scripts here."""


_CODES = re.compile(r"\x1b\[([0-9;?>]*)([A-Za-z])|\x1b[=>78]|\x1b\][^\x07]*\x07|(.)", re.DOTALL)
_MOVES = {"A": (-1, 0), "B": (1, 0), "C": (0, 1), "D": (0, -1)}


def shown(raw: str) -> str:
    """What is to be seen after these bytes: a screen of any height that knows the codes in use."""
    lines: list[list[str]] = [[]]
    row = column = 0
    for match in _CODES.finditer(raw):
        count, code, sign = match.groups()
        if sign == "\r":
            column = 0
        elif sign == "\n":
            row += 1
        elif sign is not None and sign >= " ":
            line = lines[row]
            line += " " * (column + 1 - len(line))
            line[column] = sign
            column += 1
        elif code in _MOVES:
            down, right = (step * int(count or 1) for step in _MOVES[code])
            row, column = max(row + down, 0), max(column + right, 0)
        elif code == "K":
            del lines[row][0 if count == "2" else column :]
        elif code == "J":
            del lines[row][column:], lines[row + 1 :]
        lines += [[] for _ in range(row + 1 - len(lines))]
    return "\n".join("".join(line).rstrip() for line in lines)


class Terminal:
    """A program on a pseudo-terminal of 30 lines and 80 columns, and somebody who types."""

    def __init__(
        self, words: list[str], prompt: str, *, stdout: Path | None, fresh: bool, **env: str
    ) -> None:
        unwanted = ("CI", "PYTHONBREAKPOINT", "PAGER", "LINES", "COLUMNS")
        clean = {key: value for key, value in os.environ.items() if key not in unwanted}
        clean |= {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
        self.prompt = prompt
        env = {**clean, "PAGER": "cat", **env}
        how = {"encoding": "utf-8", "codec_errors": "replace", "timeout": SECONDS, "dimensions": (30, 80)}
        if fresh:
            self.child = pexpect.spawn(sys.executable, words, env=env, **how)
        else:
            self.child = QuickSpawn(words, env=env, stdout=stdout, **how)

    def until(self, pattern: str) -> str:
        """Wait for it; what was shown before, and it."""
        self.child.expect(pattern)
        return shown(self.child.before + self.child.after)

    def until_prompt(self) -> str:
        self.child.expect(self.prompt)
        self.line = "(layerstep) "
        self._tell_cursor(self.child.before + self.child.after)
        return shown(self.child.before)

    def keys(self, *keys: str) -> None:
        self.child.send("".join(keys))

    def type(self, keys: str, expected: str) -> None:
        """Type at the prompt until its line is what is expected: completion takes its time."""
        self.child.send(keys)
        while expected not in shown(self.line):
            self.child.expect(r".+")
            self.line += self.child.after
            self._tell_cursor(self.child.after)

    def _tell_cursor(self, raw: str) -> None:
        """Answer as a terminal does that is asked where its cursor is: then the toolbar is drawn."""
        if "\x1b[6n" in raw:
            self.child.send("\x1b[1;1R")

    def ask(self, line: str) -> str:
        """Type a line; what is shown up to the next prompt."""
        self.keys(line, "\r")
        return self.until_prompt()

    def end(self) -> tuple[int | None, str]:
        """Wait for the end; the exit code and what was shown. The terminal must be as a shell wants it."""
        self.child.expect(pexpect.EOF)
        raw = self.child.before
        mode = termios.tcgetattr(self.child.child_fd)[3]
        self.child.wait()
        assert mode & termios.ECHO, "typed text is not shown any more"
        assert mode & termios.ICANON, "the terminal is still in raw mode"
        assert mode & termios.ISIG, "Ctrl-C does nothing any more"
        assert raw.rfind("\x1b[?2004h") <= raw.rfind("\x1b[?2004l"), "bracketed paste is still on"
        assert raw.rfind("\x1b[?25l") <= raw.rfind("\x1b[?25h"), "the cursor is still hidden"
        return self.child.exitstatus, shown(raw)


Open = Callable[..., Terminal]


@pytest.fixture
def open_terminal() -> Iterator[Open]:
    opened: list[Terminal] = []

    def open_(
        *words: object,
        prompt: str = PROMPT,
        python: bool = False,
        stdout: Path | None = None,
        fresh: bool = False,
        **env: str,
    ) -> Terminal:
        """`fresh`: Python itself starts, and its environment is that of all its processes."""
        given = [*(() if python else ("-m", "layerstep")), *map(str, words)]
        opened.append(Terminal(given, prompt, stdout=stdout, fresh=fresh, **env))
        return opened[-1]

    yield open_
    for terminal in opened:
        terminal.child.close(force=True)


@pytest.fixture
def script(tmp_path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text(SMALL + text)
        return path

    return write


# -- the prompt --------------------------------------------------------------------------------


def test_the_prompt_and_its_keys(open_terminal: Open, tmp_path: Path):
    script = tmp_path / "asks.py"
    script.write_text(DEMO.read_text() + "print('read', input('your turn: '))\n")
    state = Path(os.environ["LAYERSTEP_STATE"])
    state.mkdir()
    (state / "history").write_text("\n# 2000-01-01 00:00:00\n+print 6 * 7\n")
    (state / "history").chmod(0o644)
    terminal = open_terminal("run", script)

    before = terminal.until_prompt()
    assert "asks.py has not started" in before and "batch" not in before
    mode = termios.tcgetattr(terminal.child.child_fd)[3]
    assert not mode & termios.ICANON, "the prompt reads keys"

    # commands and paths are completed
    terminal.type("tbre" + TAB, "(layerstep) tbreak")
    terminal.keys(" head\r")
    assert "break 1 at head once, pending until a model runs" in terminal.until_prompt()
    stop = terminal.ask("continue")
    assert "head  done  Linear  forward 1  break 1" in stop and "batch" not in stop
    terminal.type("brea" + TAB, "(layerstep) break")
    terminal.type(" blo" + TAB, "break blocks")
    terminal.type(".3.at" + TAB, "break blocks.3.attn")
    terminal.type(".pro" + TAB, "break blocks.3.attn.proj")
    terminal.keys("\r")
    assert "✓ break 2 at blocks.3.attn.proj\n" in terminal.until_prompt()
    assert "deleted 2" in terminal.ask("delete 2")

    # Ctrl-C drops the line, an earlier session's line is found again, and the last one comes with Up
    terminal.keys("this is not to be run", CTRL_C)
    assert "✗" not in terminal.until_prompt()
    terminal.type(CTRL_R + "6 *", "print 6 * 7")
    terminal.keys("\r", "\r")
    assert "$1  42" in terminal.until_prompt()
    terminal.type(UP + " + 1", "(layerstep) print 6 * 7 + 1")
    terminal.keys("\r")
    assert "$2  43" in terminal.until_prompt()

    # a block goes on until a blank line, typed or pasted
    terminal.keys("for i in range(2):\r", "    print('number', i * 21 + 5)\r", "\r")
    assert terminal.until_prompt().endswith("\nnumber 5\nnumber 26\n")
    terminal.keys("\x1b[200~if True:\n    print(5 * 5)\n\x1b[201~", "\r")
    assert terminal.until_prompt().endswith("\n25\n")

    # Ctrl-D lets the program go, and the terminal is its own again
    terminal.keys(CTRL_D)
    terminal.until("your turn: ")
    terminal.keys("a word\r")
    code, rest = terminal.end()
    assert code == 0 and "read a word" in rest

    history = state / "history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "+delete 2\n" in history.read_text() and "not to be run" not in history.read_text()


def test_the_toolbar_a_new_history_and_stdout_in_a_file(open_terminal: Open, script, tmp_path: Path):
    path = script("net(torch.ones(1, 4))\nprint('finished')\n")
    terminal = open_terminal("run", path, stdout=tmp_path / "out", PROMPT_TOOLKIT_NO_CPR="0")
    terminal.until_prompt()
    terminal.type("", "  not started   0 points")
    terminal.ask("break 1")
    terminal.keys(CTRL_D)
    assert "1  done  Tanh" in terminal.until_prompt()
    terminal.type("", "  1   forward 1   train   1 point")
    terminal.keys(CTRL_D)
    assert terminal.end()[0] == 0
    assert (tmp_path / "out").read_text() == "finished\n"
    state = Path(os.environ["LAYERSTEP_STATE"])
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert stat.S_IMODE((state / "history").stat().st_mode) == 0o600


def test_size_colour_and_pager(open_terminal: Open):
    terminal = open_terminal("run", DEMO, NO_COLOR="1", PAGER="sed s/Embedding/PAGED/")
    terminal.until_prompt()
    terminal.ask("tbreak blocks.4.attn.qkv")
    terminal.child.logfile_read = seen = Log()
    assert max(map(len, terminal.ask("continue").splitlines())) > 50
    terminal.child.setwinsize(12, 50)
    narrow = terminal.ask("where").splitlines()
    assert len(narrow) > 8 and max(map(len, narrow)) <= 50
    tree = terminal.ask("tree").split("\n")
    assert "PAGED" in "".join(tree), "longer than the screen: the pager shows it"
    terminal.child.setwinsize(30, 120)
    assert "$1  2" in terminal.ask("print out.ndim - 1")
    terminal.keys("quit\r")
    assert terminal.end()[0] == 130
    assert not re.search(r"\x1b\[(?:\d+;)*[349]\d(?:;\d+)*m", seen.text), "a colour in spite of NO_COLOR"
    assert tree[-1] == "", "after the pager the prompt begins on a line of its own"


class Log:
    """What pexpect reads, kept."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def test_a_dumb_terminal_gets_plain_text(open_terminal: Open, script):
    path = script("net(torch.ones(1, 4))\nprint('finished')\n")
    terminal = open_terminal("run", path, prompt=DUMB_PROMPT, TERM="dumb")
    terminal.child.logfile_read = seen = Log()
    assert "script.py has not started" in terminal.until_prompt()
    assert "pending until a model runs" in terminal.ask("break 1")
    terminal.keys("for i in range(2):\r")
    terminal.until(r"\.\.\. ")
    terminal.keys("    print('number', i * 21 + 5)\r")
    terminal.until(r"\.\.\. ")
    assert "\nnumber 5\nnumber 26\n" in terminal.ask("")
    assert "1  done  Tanh" in terminal.ask("continue")
    terminal.keys("continue\r")
    code, rest = terminal.end()
    assert code == 0 and "finished" in rest
    assert "\x1b" not in seen.text


# -- Ctrl-C while the program runs -------------------------------------------------------------

ENDLESS = """\
while True:
    try:
        net(torch.ones(1, 4))
        print("once more")
    except Exception:
        print("swallowed")
    finally:
        done = True
"""


def test_ctrl_c_stops_at_the_next_module_and_quit_passes_except_exception(open_terminal: Open, script):
    terminal = open_terminal("run", script(ENDLESS))
    terminal.until_prompt()
    terminal.keys("continue\r")
    terminal.until("once more")
    terminal.child.sendintr()
    stop = terminal.until_prompt()
    assert "stopping at the next module; Ctrl-C again interrupts" in stop
    assert re.search(r"^\S+  (entered|done)  (Sequential|Linear|Tanh)  forward ", stop, re.MULTILINE)
    assert re.search(r"^net +Sequential ", terminal.ask("info models"), re.MULTILINE)
    # an answer that takes too long is interrupted, and the run is where it was
    terminal.keys("""__import__("os").write(2, b"bu" + b"sy") and sum(1 for _ in iter(int, 1))\r""")
    terminal.until("busy")
    terminal.child.sendintr()
    assert "! interrupted" in terminal.until_prompt()
    assert "$1  42" in terminal.ask("print 6 * 7")
    terminal.keys("quit\r")
    code, rest = terminal.end()
    assert code == 130
    assert "swallowed" not in rest and "Traceback" not in rest


IDLE = """\
import time

net(torch.ones(1, 4))
print("idling")
while True:
    time.sleep(0.01)
"""


def test_ctrl_c_twice_interrupts_the_program(open_terminal: Open, script):
    path = script(IDLE)
    terminal = open_terminal("run", path)
    terminal.until_prompt()
    terminal.keys("continue\r")
    terminal.until("idling")
    for _ in range(20):  # two in quick succession, however slow this machine is
        terminal.child.sendintr()
        if terminal.child.expect(["stopping at the next module", "Traceback"]) == 1:
            break
    code, trace = terminal.end()
    assert code == 130
    assert f'File "{path}", line ' in trace and trace.rstrip().endswith("KeyboardInterrupt")
    assert OURS not in trace


@pytest.mark.long
def test_ctrl_c_within_a_condition_stops_too(open_terminal: Open, script):
    terminal = open_terminal("run", script(ENDLESS))
    terminal.until_prompt()
    slow = """__import__("os").write(2, b"bu" + b"sy") and sum(1 for _ in range(10_000_000)) < 0"""
    terminal.ask(f"break 1 if {slow}")
    terminal.keys("continue\r")
    terminal.until("busy")
    terminal.child.sendintr()
    assert "Traceback" not in terminal.until("stopping at the next module|Traceback")
    assert re.search(r"^\S+  (entered|done)  ", terminal.until_prompt(), re.MULTILINE)


OPS = """\
import signal

from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


class Long(nn.Module):
    twice = False

    def forward(self, x):
        turns = 0
        while True:
            x = x.tanh()
            turns += 1
            if turns == 9:
                print("nine turns")
            for _ in range(20 * self.twice):
                signal.raise_signal(signal.SIGINT)


try:
    Long()(torch.ones(4))
except KeyboardInterrupt:
    left = [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]
    print("modes left:", left)
    print("and on:", torch.ones(2).tanh().sum().item() > 1)
"""


@pytest.mark.parametrize("step", ["step op", pytest.param("stepi", marks=pytest.mark.long)])
def test_ctrl_c_while_ops_are_stepped(open_terminal: Open, script, step: str):
    """Once stops at the next op; twice at once interrupts the program, and leaves no mode behind."""
    terminal = open_terminal("run", script(OPS))
    terminal.until_prompt()
    assert "Long  entered  Long" in terminal.ask("into")
    assert "tanh  done" in terminal.ask(step)
    terminal.keys(f"{step} 999999999\r")
    terminal.until("nine turns")  # the run goes on: before, Ctrl-C would have cancelled the line
    terminal.child.sendintr()
    terminal.until("stopping at the next module")
    assert "tanh  done" in terminal.until_prompt()
    terminal.ask("mod.twice = True")
    terminal.keys(f"{step} 999999999\r")
    code, rest = terminal.end()
    assert code == 0
    assert "modes left: []" in rest and "and on: True" in rest


# -- how the terminal is left ------------------------------------------------------------------


def test_the_terminal_is_put_back_when_the_script_fails(open_terminal: Open, script):
    path = script("net(torch.ones(1, 4))\nraise RuntimeError('planted fault')\n")
    terminal = open_terminal("run", path)
    terminal.until_prompt()
    terminal.ask("break 1")
    terminal.ask("continue")
    assert "raised RuntimeError" in terminal.ask("continue")
    terminal.keys("continue\r")
    code, trace = terminal.end()
    assert code == 1
    assert f'File "{path}", line ' in trace and "RuntimeError: planted fault" in trace
    assert OURS not in trace


UNDER_THE_PROMPT = """\
import termios, threading, time

def fail():
    raise ValueError("fault of a thread")

threading.Thread(target=lambda: net(torch.ones(1, 4)), daemon=True).start()
while termios.tcgetattr(0)[3] & termios.ICANON:  # until the prompt is open
    time.sleep(0.01)
other = threading.Thread(target=fail, name="other")
other.start()
other.join()
raise RuntimeError("planted fault")
"""
FAILED = r"""
Exception in thread other:
Traceback \(most recent call last\):
(?:  .*\n)+ValueError: fault of a thread
Traceback \(most recent call last\):
(?:  .*\n)+RuntimeError: planted fault
\(layerstep\)\s*$"""


def test_tracebacks_under_an_open_prompt_are_whole_and_the_terminal_is_put_back(open_terminal: Open, script):
    terminal = open_terminal("run", script(UNDER_THE_PROMPT))
    terminal.until_prompt()
    terminal.ask("break 1")
    terminal.keys("continue\r")
    code, rest = terminal.end()
    assert code == 1 and re.search(FAILED, rest), rest


# -- progress bars -----------------------------------------------------------------------------

TQDM = """\
from tqdm import tqdm

for _ in tqdm(range(3), desc="training"):
    net(torch.ones(1, 4))
print("finished")
"""

RICH = """\
from rich.progress import Progress, track

with Progress() as progress:
    task = progress.add_task("warming up", total=2)
    for _ in range(2):
        net(torch.ones(1, 4))
        progress.advance(task)
print("between")
for _ in track(range(3), description="training"):
    net(torch.ones(1, 4))
print("finished")
"""


def test_a_bar_of_tqdm_is_away_at_a_stop_and_comes_back(open_terminal: Open, script):
    terminal = open_terminal("run", script(TQDM))
    terminal.until_prompt()
    terminal.ask("break 1")
    for number in (1, 2, 3):
        stop = terminal.ask("continue")
        assert f"1  done  Tanh  forward {number}  break 1" in stop
        assert "training" not in stop
        assert "training" in terminal.child.before, "the bar was there while the program ran"
    terminal.keys("continue\r")
    code, rest = terminal.end()
    assert code == 0
    assert re.search(r"^training: 100%.*\| 3/3 \[.*\nfinished$", rest, re.MULTILINE)


DOCTORED = """\
import time
from tqdm import tqdm

optimizer = torch.optim.SGD(net.parameters(), 0.01)
for step in tqdm(range(40), desc="training"):  # no zero_grad
    net(torch.ones(1, 4)).square().sum().backward()
    optimizer.step()
    time.sleep(0.03)
print("finished")
"""


def test_a_status_line_beside_tqdm_leaves_nothing_behind(open_terminal: Open, script):
    terminal = open_terminal("doctor", script(DOCTORED))
    terminal.child.expect(pexpect.EOF)
    raw = terminal.child.before
    status = re.findall(r"\x1b7\r+\n(step [^\x1b]*)\x1b8", raw)
    assert len(status) >= 3 and re.match(r"step \d+  loss .*  health .*  doctor [\d.]+%$", status[-1])
    assert max(map(len, status)) < 80
    while_it_ran, _, after = raw.rpartition("\x1b8")
    assert "R2 stale-gradients" in while_it_ran
    its_line, _, _ = after.partition("finished")[2].partition("\r\n")
    until_its_line_ends = after.partition("finished")[0] + its_line
    assert "\x1b[J" in until_its_line_ends, "nothing of the status line is left on the line of the program"
    assert "40/40" in raw and "training steps" in after


@pytest.mark.long
def test_a_bar_of_rich_is_away_at_a_stop_and_comes_back(open_terminal: Open, script):
    terminal = open_terminal("run", script(RICH))
    terminal.until_prompt()
    terminal.ask("break 1")
    for number in (1, 2):
        stop = terminal.ask("continue")
        assert f"1  done  Tanh  forward {number}  break 1" in stop
        assert "warming up" not in stop
    stop = terminal.ask("continue")
    assert re.search(r"^warming up ━+ 100%.*\nbetween$", stop, re.MULTILINE)
    assert "forward 3  break 1" in stop and "training" not in stop
    assert "deleted 1" in terminal.ask("delete")
    terminal.keys("continue\r")
    code, rest = terminal.end()
    assert code == 0
    assert re.search(r"^training ━+ 100%.*\nfinished$", rest, re.MULTILINE)


# -- set_trace and the demo --------------------------------------------------------------------

TRACED = """\
class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net

    def forward(self, x):
        hidden = self.net(x)
        breakpoint()
        return self.net[2](hidden.repeat(1, 4))


total = 21
breakpoint()
outer = Outer()
outer(torch.ones(1, 4))
print("finished")
"""


def test_breakpoint_asks_on_a_terminal(open_terminal: Open, script):
    path = script(TRACED)
    terminal = open_terminal(path, python=True, PYTHONBREAKPOINT="layerstep.set_trace")
    stop = terminal.until_prompt()
    assert re.search(r"^script\.py  set_trace\(\)\n  at  script\.py:\d+  breakpoint\(\)$", stop, re.MULTILINE)
    assert "$1  42" in terminal.ask("total * 2")
    assert re.search(r"^→ \d+  breakpoint\(\)$", terminal.ask("list"), re.MULTILINE)
    inside = terminal.ask("continue")
    assert re.search(r"^Outer\.forward\(\)  \w+  Outer  set_trace\(\)$", inside, re.MULTILINE)
    assert "f32[1, 2] cpu" in terminal.ask("hidden")
    where = terminal.ask("where")
    assert re.search(r"^→ 0  \w+  Outer  running\n +\(f32\[1, 4\]\)$", where, re.MULTILINE)
    assert "net.2  done  Linear" in terminal.ask("step")
    terminal.keys("continue\r")
    code, rest = terminal.end()
    assert code == 0 and "finished" in rest


def test_the_demo_is_played_with_enter_alone(open_terminal: Open):
    from layerstep.demo.tour import STEPS

    terminal = open_terminal("demo")
    screens = []
    for word, _ in STEPS:
        screen = terminal.until_prompt()
        assert " ".join(word.split()) in " ".join(screen.split())
        screens.append(screen)
        terminal.keys("\r")
    code, rest = terminal.end()
    assert code == 0 and "batch 3: mean logit nan" in rest
    text = "\n".join(screens)
    assert "✗" not in text and "blocks.1.norm1  done  RMSNorm" in text
    for _, line in STEPS[:-1]:
        assert f"(layerstep) {line}\n" in text
