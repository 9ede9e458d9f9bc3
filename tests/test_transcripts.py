"""Golden transcripts: what is typed and exactly what the screen shows. `pytest --update` rewrites them.

One whose first line says so is kept at 120 columns and in colour, too, in the folders `wide` and `colour`.
Where it says `by its own clock`, time passes only as often as it is asked for, and while the script sleeps;
where `alone`, the tensors of other tests are hidden. `at N columns` makes the screen narrower, and
`in its own process` keeps the threads of other tests away, and `in a pipe` runs the command line itself.
"""

from __future__ import annotations

import gc
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from layerstep.render.screen import make_console
from play import Clock, play, read_transcript, script_named

pytestmark = pytest.mark.own_process(rounds_alike=True)

FOLDER = Path(__file__).parent / "transcripts"
TRANSCRIPTS = sorted(FOLDER.glob("*.txt"))
ALSO = ", also at 120 columns and in colour"
CLOCK = ", by its own clock"
ALONE = ", alone"
OWN_PROCESS = ", in its own process"
PIPE = ", in a pipe"
TWICE = [path for path in TRANSCRIPTS if ALSO in path.read_text().partition("\n")[0]]
CASES = [(path, "") for path in TRANSCRIPTS]
CASES += [
    pytest.param(path, look, marks=() if path in TWICE[:2] else pytest.mark.long)
    for path in TWICE
    for look in ("wide", "colour")
]


def shown(path: Path, look: str) -> str:
    name, typed, _ = read_transcript(path)
    clock = Clock() if CLOCK in path.read_text().partition("\n")[0] else None
    head = path.read_text().partition("\n")[0]
    if OWN_PROCESS in head:
        return played_elsewhere(name, typed)
    if PIPE in head:
        return piped(name, typed)
    if look != "colour":
        narrow = re.search(r", at (\d+) columns", head)
        width = 120 if look == "wide" else int(narrow[1]) if narrow else 80
        return play(script_named(name), typed, width=width, clock=clock)[0]
    console = make_console(io.StringIO(), width=80, colour=True)
    return play(script_named(name), typed, console=console, keep_colour=True, clock=clock)[0]


def piped(name: str, typed: list[str]) -> str:
    """The run may go on in another process, so the screen is what all of them write."""
    clean = {key: value for key, value in os.environ.items() if key != "CI"}
    done = subprocess.run(
        [sys.executable, "-u", "-m", "layerstep", "run", str(script_named(name))],
        input="\n".join(typed) + "\n",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        env={**clean, "OMP_NUM_THREADS": "1", "COLUMNS": "80", "PYTHONUTF8": "1"},
        check=False,
    )
    return done.stdout.strip("\n")


def played_elsewhere(name: str, typed: list[str]) -> str:
    code = f"from play import *; print(play(script_named({name!r}), {typed!r})[0], end='')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        encoding="utf-8",
        cwd=FOLDER.parent / "support",
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def _alone(path: Path) -> None:
    """A census goes through all objects but those that are frozen."""
    if ALONE in path.read_text().partition("\n")[0]:
        gc.collect()
        gc.freeze()


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("path, look", CASES, ids=lambda value: getattr(value, "stem", value))
def test_the_screen_shows_what_the_transcript_says(
    path: Path, look: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    screen = shown(path, look)
    head = path.read_text().partition("\n")[0]
    kept = path.parent / look / path.name
    if request.config.getoption("--update"):
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(f"{head}\n{screen}\n")
    else:
        assert screen == kept.read_text().partition("\n")[2].strip("\n")


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 12
    assert len(TWICE) >= 5
