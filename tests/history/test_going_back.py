"""`history on` and `back step` in a script that knows nothing of them: the same bits, and no process left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from going_back import TRAIN, Done, environment, processes, run, wait_until_gone

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="checkpoints need Linux"),
    pytest.mark.xdist_group("history"),
]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history") / "train.py"
    path.write_text(TRAIN)
    return path


@pytest.fixture(scope="module")
def bare(script: Path) -> Done:
    return run(script, None)


def test_steps_are_done_again_bit_by_bit(script: Path, bare: Done) -> None:
    """1 to 8 steps back, twice in a row each, and forward again; in between, `history on` does nothing."""
    lines = ["history on keep 6", "until step 11"]
    for count in range(1, 9):
        lines += [f"back step {count}", f"back step {min(count, 2)}", "until step 11"]
    done = run(script, [*lines, "info cost", "continue"])
    assert done.end == bare.end and done.code == bare.code == 7
    assert all(len(different) == 1 for different in done.losses.values()), done.losses
    assert done.losses == bare.losses
    assert done.screen.count("at the beginning of step") == 16
    assert "at the beginning of step 4; 8 steps back" in done.screen
    assert "at the beginning of step 2; 2 steps back" in done.screen
    assert "a fork after" in done.screen and "✗" not in done.screen


@pytest.mark.long
def test_checkpoints_change_nothing(script: Path, bare: Done) -> None:
    done = run(script, [], "--batch", "-e", "history on every 2 keep 4")
    assert (done.out, done.code) == (bare.out, bare.code)


def test_the_conversation_goes_on(script: Path, bare: Done, tmp_path: Path) -> None:
    """What the user has set since stays: points with their numbers, aliases, settings, lines to come."""
    written = tmp_path / "session.txt"
    given = ("history on every 4 keep 3", "break 0 if False", "until step 6", "back step 2", "until step 10")
    lines = [
        "delete 1",
        "break 4 if step == 10",
        "ignore 2 1",
        "watch step",
        "alias so = stats out",
        "config max_lines 50",
        f"transcript {written}",
        "back step 1",
        "info breaks",
        "alias",
        "step",
        "history",
        "disable",
        "continue",
    ]
    done = run(script, lines, *(word for line in given for word in ("-e", line)))
    assert done.end == bare.end and done.code == 7 and done.losses == bare.losses
    assert done.screen.count("(layerstep) back step 2") == 1, "given lines are run once"
    at = done.screen.index("at the beginning of step 10; 1 step back")
    after = done.screen[at:]
    assert " 2  break  4" in after and "ignored 1 more times" in after and "\n 1  break" not in after
    assert "so     stats out" in after and "watch 3  step = 8" in after
    # What follows `optimizer.step()` in the loop is done again; a step without a checkpoint is run from one.
    assert done.steps == [*range(1, 7), *range(4, 11), *range(8, 17)]
    text = written.read_text()
    assert text.count("(layerstep) back step 1") == 1 and "at the beginning of step 10" in text


@pytest.mark.long
def test_edits_act_again_in_steps_that_are_run_silently(script: Path) -> None:
    """From the checkpoint of step 4 to step 7, with the edit that was there the first time."""
    lines = [
        "history on every 4",
        "edit 4 out * 0.5",
        "log 0 'at {step}'",
        "until step 7",
        "back step 0",
        "continue",
    ]
    done = run(script, lines)
    assert done.steps == [*range(1, 8), *range(4, 17)]
    assert all(len(different) == 1 for different in done.losses.values()), done.losses


HANDS_ON = TRAIN.replace(
    "step = 0\n",
    """\
from layerstep import attach
from layerstep.sinks.sink import Sink


class Lines(Sink):
    def write(self, text):
        with open("records.txt", "a") as file:
            file.write(text + " ")

    def open(self):
        self.write("open")

    def scalars(self, values, step):
        self.write(str(step))

    def close(self):
        self.write("close")


lines = ["grad record", "history on", "until step 6", "back step 2", "info cost", "until step 8"]
attach(net, commands=[*lines, "back step 1", "continue"], sinks=[Lines()])
step = 0
""",
)


def test_trackers_get_what_was_recorded_before_and_a_line_says_that_no_more_comes(
    tmp_path: Path, bare: Done, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.py"
    path.write_text(HANDS_ON)
    monkeypatch.chdir(tmp_path)
    done = run(path, None)
    assert done.end == bare.end and done.losses == bare.losses, done.screen
    assert (tmp_path / "records.txt").read_text() == "open 1 2 3 4 5 6 close "
    assert done.screen.count("the run goes back: no more records go to Lines") == 1
    assert done.screen.count("records are in Lines") == 1 and "instrument  records go to" not in done.screen


CRASHES = TRAIN.replace("        step += 1\n", "        step += 1\n        assert step != 9, 'too far'\n")


def test_a_crash_is_gone_back_from_and_leaves_no_process(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(CRASHES)
    done = run(path, ["history on", "continue", "back step 2", "continue", "print 'at the crash', step"])
    assert "at the beginning of step 8; 2 steps back" in done.screen
    assert done.steps == [*range(1, 9), *range(7, 9)]
    assert "('at the crash', 9)" in done.screen and done.code == 1


@pytest.mark.parametrize(
    ("name", "is_back"),
    [
        ("SIGTERM", True),
        pytest.param("SIGTERM", False, marks=pytest.mark.long),
        pytest.param("SIGKILL", True, marks=pytest.mark.long),
        pytest.param("SIGKILL", False, marks=pytest.mark.long),
        pytest.param("SIGHUP", True, marks=pytest.mark.long),
        pytest.param("SIGINT", True, marks=pytest.mark.long),
    ],
)
def test_a_signal_leaves_no_process(script: Path, name: str, is_back: bool) -> None:
    """Sent to the process that was started, whatever runs in its place by then."""
    mark = uuid.uuid4().hex
    lines = [
        "history on",
        "until step 9",
        *(["back step 3", "back step 1"] if is_back else []),
        "print 41 + 1",
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "layerstep", "run", str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(mark),
    ) as child:
        assert child.stdin is not None and child.stderr is not None
        child.stdin.write("\n".join(lines) + "\n")
        child.stdin.flush()
        while "42" not in (child.stderr.readline() or pytest.fail("it has ended")):
            pass
        assert len(processes(mark)) > 4
        number = signal.Signals[name]
        os.kill(child.pid, number)
        if number is signal.SIGINT:  # at the prompt it cancels a line, and there is none
            time.sleep(0.2)
            assert child.poll() is None
            os.kill(child.pid, number)
            child.stdin.write("quit\n")
            child.stdin.flush()
        code = child.wait(100)  # with its input open: at the end of it the run would go on
    assert code == (-number if number is not signal.SIGINT else 130)
    wait_until_gone(mark)


ENDLESS = TRAIN.replace("while step < 14:", "while True:")


def test_ctrl_c_for_the_run_and_its_checkpoints_leaves_no_process(tmp_path: Path) -> None:
    """A terminal sends it to all processes of the group: the run stops at a module, and `quit` ends it."""
    path = tmp_path / "train.py"
    path.write_text(ENDLESS)
    mark = uuid.uuid4().hex
    with subprocess.Popen(
        [sys.executable, "-m", "layerstep", "run", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(mark),
        start_new_session=True,
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write("history on\ncontinue\n")
        child.stdin.flush()
        while "step 15 " not in (child.stdout.readline() or pytest.fail("it has ended")):
            pass
        assert len(processes(mark)) > 4
        os.killpg(child.pid, signal.SIGINT)
        while "Ctrl-C" not in (child.stdout.readline() or pytest.fail("it has ended")):
            pass
        os.killpg(child.pid, signal.SIGINT)  # at the prompt: nothing
        child.stdin.write("quit\n")
        child.stdin.flush()
        child.stdout.read()
        assert child.wait(100) == 130
    wait_until_gone(mark)
