"""The process that `quick_python` forks. It ends when the process of the tests closes the socket."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from types import CodeType
from typing import Any

MOST = 1 << 18


def imports() -> None:
    """What runs under the debugger import; dynamo comes with the first optimizer, and takes half the time."""
    from importlib import import_module

    for name in ("numpy", "torch._dynamo", "layerstep.cli", "layerstep.program", "layerstep.opening"):
        import_module(name)
    for name in ("render.screen", "render.json", "frontends.choose", "frontends.output", "wrong_lines"):
        import_module(f"layerstep.{name}")
    import_module("layerstep.registry").all_commands()
    import_module("enough_time").give_enough_time()


def requests(line: socket.socket) -> dict[str, Any]:
    """Serves for ever; returns in each child, which has its files, with what it shall run."""
    while True:
        data, files, _, _ = socket.recv_fds(line, MOST, 4)
        if not data:
            os._exit(0)
        if os.fork() == 0:
            line.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if (child := os.fork()) == 0:
                return prepared(json.loads(data), files)
            for file in files[:3]:
                os.close(file)
            os.write(files[3], f"{child}\n".encode())
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            os.write(files[3], f"{code}\n".encode())
            os._exit(0)
        for file in files:
            os.close(file)


def prepared(asked: dict[str, Any], files: list[int]) -> dict[str, Any]:
    if asked["new_session"]:
        os.setsid()
    if asked["on_terminal"]:
        import fcntl
        import termios

        fcntl.ioctl(files[0], termios.TIOCSCTTY, 0)
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    if (threads := os.environ.get("OMP_NUM_THREADS", "1")) != "1":
        sys.modules["torch"].set_num_threads(int(threads))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = opened(number, f"<{name}>")
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    return asked


def opened(number: int, name: str) -> Any:
    import io

    mode = "r" if number == 0 else "w"
    raw = io.FileIO(number, mode, closefd=False)
    raw.name = name  # type: ignore[misc]
    buffer = io.BufferedReader(raw) if number == 0 else io.BufferedWriter(raw)
    errors = "backslashreplace" if number == 2 else "strict"
    return io.TextIOWrapper(
        buffer, encoding="utf-8", errors=errors, line_buffering=number == 2 or raw.isatty()
    )


def program(words: list[str]) -> tuple[CodeType | None, dict[str, Any]]:
    """The code to run and the names of its module; for `-m`, no code."""
    import types
    import warnings

    if words[0] == "-W":
        warnings.simplefilter(words[1])  # type: ignore[arg-type]
        return program(words[2:])
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path[0] = os.getcwd()
        return None, main.__dict__
    if words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
        return compile(words[1], "<string>", "exec"), main.__dict__
    sys.argv, sys.path[0] = words, os.path.dirname(os.path.abspath(words[0]))
    main.__dict__["__file__"] = words[0]
    with open(words[0], "rb") as file:
        return compile(file.read(), words[0], "exec"), main.__dict__


if __name__ == "__main__":
    line = socket.socket(fileno=int(sys.argv[1]))
    line.send(b"!")
    sys.path.insert(0, sys.argv[2])
    imports()
    del sys.path[0]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    words = requests(line)["words"]
    code, names = program(words)
    if code is None:
        import runpy

        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
    else:
        exec(code, names)
