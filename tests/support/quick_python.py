"""Python processes that start in 0.1 s in place of 1.2 s: forks of one that has imported torch and layerstep.

Each has its own files, folder and environment, and ends as any other process does. A test of what happens as
Python starts uses `subprocess`: options of Python, imports, and variables that libraries read when they load.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import py_compile
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

SECONDS = 250
"""No process may take longer; only one that hangs does."""
_SERVER = Path(__file__).with_name("quick_python_server.py")


def run(
    words: Sequence[object],
    *,
    input: str | None = None,
    stdin: int | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = False,
    new_session: bool = False,
) -> Finished:
    """As `subprocess.run([sys.executable, *words])` with its output captured. Without input, it has none."""
    (out, its_out), (err, its_err) = os.pipe(), os.pipe()
    texts: dict[int, str] = {}
    threads = [threading.Thread(target=_read, args=(file, texts), daemon=True) for file in (out, err)]
    its_in = os.open(os.devnull, os.O_RDONLY)
    if input is not None:
        os.close(its_in)
        its_in, typed = os.pipe()
        threads.append(threading.Thread(target=_write, args=(typed, input), daemon=True))
    given = its_in if stdin in (None, subprocess.DEVNULL) else stdin
    started = start(words, (given, its_out, its_err), cwd=cwd, env=env, new_session=new_session)
    for file in (its_in, its_out, its_err):
        os.close(file)
    for thread in threads:
        thread.start()
    code = started.wait()
    for thread in threads:
        thread.join(SECONDS)
    done = Finished([*map(str, words)], code, texts[out], texts[err])
    done.pid = started.pid
    if check:
        done.check_returncode()
    return done


def _read(file: int, texts: dict[int, str]) -> None:
    with open(file, encoding="utf-8") as stream:
        texts[file] = stream.read()


def _write(file: int, text: str) -> None:
    try:
        with open(file, "w", encoding="utf-8") as stream:
            stream.write(text)
    except BrokenPipeError:
        pass


class Finished(subprocess.CompletedProcess[str]):
    """A process that is over."""

    pid: int


class Started:
    """A process that runs."""

    def __init__(self, status: int) -> None:
        self._status, self._told = status, b""
        self.pid = self._number()
        self.returncode: int | None = None

    def wait(self) -> int:
        """Its exit code, or minus the signal that it died of."""
        if self.returncode is None:
            timer = threading.Timer(SECONDS, self.kill)
            timer.start()
            self.returncode = self._number()
            timer.cancel()
            os.close(self._status)
        return self.returncode

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def _number(self) -> int:
        while b"\n" not in self._told:
            more = os.read(self._status, 64)
            assert more, "the server has ended"
            self._told += more
        line, _, self._told = self._told.partition(b"\n")
        return int(line)


def start(
    words: Sequence[object],
    files: tuple[int, int, int],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    new_session: bool = False,
    on_terminal: bool = False,
) -> Started:
    """Start Python with these files as 0, 1 and 2. `on_terminal`: the first is that of its new session."""
    status, its_status = os.pipe()
    asked = {
        "words": [*map(str, words)],
        "cwd": str(cwd or Path.cwd()),
        "env": dict(os.environ if env is None else env),
        "new_session": new_session or on_terminal,
        "on_terminal": on_terminal,
    }
    socket.send_fds(_server(), [json.dumps(asked).encode()], [*files, its_status])
    os.close(its_status)
    return Started(status)


@functools.cache
def _server() -> socket.socket:
    """Its frames are below those of the program: the name of its file says that they are Python's own."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with tempfile.TemporaryDirectory() as folder:
        compiled = py_compile.compile(str(_SERVER), str(Path(folder, "server.pyc")), "<frozen quick_python>")
        process = subprocess.Popen(
            [sys.executable, str(compiled), str(its.fileno()), str(_SERVER.parent)],
            pass_fds=[its.fileno()],
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C is for pytest
            # threads that spin while they wait are slow on a busy machine
            env=os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONUTF8": "1"},
        )
        its.close()
        ours.recv(1)  # it has read the file
    atexit.register(_end, ours, process)
    return ours


def _end(line: socket.socket, server: subprocess.Popen[bytes]) -> None:
    line.close()
    server.wait(SECONDS)
