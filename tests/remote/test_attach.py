"""`layerstep attach` from another process, on programs that run for real."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from attached_training import wait_for

PROGRAM = """
import sys, time, torch
from torch import nn
{imports}
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters())
with open("losses", "w") as log:
    for step in range(int(sys.argv[1])):
        x = torch.randn(8, 16)
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item().hex(), file=log, flush=True)
        time.sleep(float(sys.argv[2]))
"""
SCRIPTS = Path(sys.executable).parent


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "train.py").write_text(PROGRAM.format(imports=""))
    (tmp_path / "listens.py").write_text(PROGRAM.format(imports="import layerstep"))
    started.clear()
    yield tmp_path
    for process in started:
        process.kill()
        process.communicate()


started: list[subprocess.Popen[str]] = []


def start(folder: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        words,
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    started.append(process)
    return process


def layerstep(*words: str) -> list[str]:
    return [str(SCRIPTS / "layerstep"), *words]


def steps_of(folder: Path) -> int:
    file = folder / "losses"
    return len(file.read_text().splitlines()) if file.exists() else 0


def listening(folder: Path, runtime_dir: Path, steps: int = 100_000, *, script: str = "train.py") -> int:
    """A program that was started without a thought of the debugger; its process, once it trains."""
    runner = layerstep("run") if script == "train.py" else [sys.executable]
    process = start(folder, *runner, script, str(steps), "0.01", LAYERSTEP_LISTEN="1")
    wait_for(lambda: steps_of(folder) > 3 or process.poll() is not None, seconds=120)
    assert process.poll() is None, process.communicate()[0]
    assert (runtime_dir / f"{process.pid}.sock").exists()
    return process.pid


def attach(folder: Path, *lines: str, pid: str = "") -> str:
    """What a client shows that types these lines."""
    done = subprocess.run(
        layerstep("attach", *([pid] if pid else [])),
        cwd=folder,
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode in (0, 2), done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("script", ["train.py", pytest.param("listens.py", marks=pytest.mark.long)])
def test_a_run_that_is_looked_at_trains_as_it_would(folder: Path, runtime_dir: Path, script: str) -> None:
    listening(folder, runtime_dir, script=script)
    screen = attach(folder, "interrupt", "where", "next", "stats out", "step", "print loss", "detach")
    assert "Sequential" in screen and "percentiles" in screen and "the program goes on" in screen
    before = steps_of(folder)
    wait_for(lambda: steps_of(folder) > before + 20, seconds=60)
    started[0].kill()
    started[0].wait()
    losses = (folder / "losses").read_text().splitlines()[:-1]  # the last one may be half a line
    subprocess.run([sys.executable, "train.py", str(len(losses)), "0"], cwd=folder, check=True)
    assert (folder / "losses").read_text().splitlines() == losses


@pytest.mark.long
def test_the_only_one_is_taken_and_several_are_listed(folder: Path, runtime_dir: Path) -> None:
    assert "no process listens" in attach(folder)
    first = listening(folder, runtime_dir)
    assert f"process {first}: running" in attach(folder)
    (folder / "losses").unlink()
    second = listening(folder, runtime_dir)
    screen = attach(folder)
    assert f"{first} " in screen and f"{second} " in screen and "2 processes listen" in screen
    assert f"process {second}" in attach(folder, pid=str(second))


@pytest.mark.long
def test_a_killed_client_leaves_the_run_alone(folder: Path, runtime_dir: Path) -> None:
    pid = listening(folder, runtime_dir)
    client = subprocess.Popen(
        layerstep("attach", str(pid)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert client.stdin is not None and client.stdout is not None
    client.stdin.write("interrupt\n")
    client.stdin.flush()
    assert any("forward" in line for line in iter(client.stdout.readline, ""))  # it stands at a stop
    client.kill()
    client.communicate()
    before = steps_of(folder)
    wait_for(lambda: steps_of(folder) > before + 20, seconds=60)  # after a grace of ten seconds


@pytest.mark.long
def test_a_killed_run_is_told_and_its_socket_goes(folder: Path, runtime_dir: Path) -> None:
    pid = listening(folder, runtime_dir)
    client = subprocess.Popen(
        layerstep("attach", str(pid)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert client.stdout is not None and client.stdin is not None
    assert "attached" in client.stdout.readline()
    os.kill(pid, signal.SIGKILL)
    started[0].wait()
    out, _ = client.communicate("where\n", timeout=60)
    assert "the program has ended" in out
    assert (runtime_dir / f"{pid}.sock").exists()
    assert "no process listens" in attach(folder)
    assert not list(runtime_dir.iterdir())


def test_hold_waits_for_a_client_before_the_program_starts(folder: Path, runtime_dir: Path) -> None:
    process = start(folder, *layerstep("run", "--listen", "--hold", "train.py", "20", "0"))
    wait_for(lambda: (runtime_dir / f"{process.pid}.sock").exists(), seconds=120)
    time.sleep(0.5)
    assert steps_of(folder) == 0
    screen = attach(folder, "break 3", "continue", "where", "delete", "continue")
    assert "not started" in screen and "Linear" in screen
    assert process.wait(100) == 0
    assert steps_of(folder) == 20


def test_nothing_listens_where_layerstep_is_off(folder: Path, runtime_dir: Path) -> None:
    process = start(folder, sys.executable, "listens.py", "5", "0", LAYERSTEP_LISTEN="1", LAYERSTEP="0")
    assert process.wait(100) == 0
    assert not runtime_dir.exists()


def test_a_process_that_does_not_listen_is_told_how(folder: Path) -> None:
    screen = attach(folder, pid=str(os.getpid()))
    assert "does not listen" in screen and "--listen" in screen
    assert "no such process" in attach(folder, pid="99999999")


def test_attach_on_a_terminal(folder: Path, runtime_dir: Path) -> None:
    pid = listening(folder, runtime_dir)
    prompt = pexpect.spawn(
        str(SCRIPTS / "layerstep"), ["attach", str(pid)], encoding="utf-8", timeout=60, dimensions=(24, 80)
    )
    prompt.expect_exact("(running)")
    prompt.sendintr()
    prompt.expect("entered|done")
    prompt.expect_exact("(layerstep)")
    prompt.send("whe\t")
    prompt.expect_exact("where")
    prompt.send("\r")
    prompt.expect_exact("train.py:")
    prompt.send("quit\r")
    prompt.expect_exact("ends the program")
    prompt.send("detach\r")
    prompt.expect_exact("the program goes on")
    prompt.expect(pexpect.EOF)
    prompt.close()
    before = steps_of(folder)
    wait_for(lambda: steps_of(folder) > before + 5, seconds=9)


@pytest.mark.long
def test_a_terminal_that_is_closed_leaves_the_run_alone(folder: Path, runtime_dir: Path) -> None:
    pid = listening(folder, runtime_dir)
    prompt = pexpect.spawn(str(SCRIPTS / "layerstep"), ["attach", str(pid)], encoding="utf-8", timeout=60)
    prompt.expect_exact("(running)")
    prompt.sendintr()
    prompt.expect_exact("(layerstep)")
    prompt.close(force=True)
    before = steps_of(folder)
    wait_for(lambda: steps_of(folder) > before + 5, seconds=60)


def test_the_client_imports_no_torch() -> None:
    code = "import sys, layerstep.frontends.remote.attach, layerstep.frontends.remote.line_editor"
    subprocess.run([sys.executable, "-c", f"{code}; sys.exit('torch' in sys.modules)"], check=True)
