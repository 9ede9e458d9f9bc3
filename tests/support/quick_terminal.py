"""A process of `quick_python` on a pseudo-terminal, with the methods of `pexpect.spawn` that tests use."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pexpect.fdpexpect import fdspawn

import quick_python


class QuickSpawn(fdspawn):
    """Python in a session of its own, whose terminal this is; `stdout` may be a file."""

    def __init__(
        self,
        words: Sequence[object],
        *,
        dimensions: tuple[int, int],
        env: Mapping[str, str],
        stdout: Path | None = None,
        **how: Any,
    ) -> None:
        ours, its = pty.openpty()
        super().__init__(ours, **how)
        self.setwinsize(*dimensions)
        out = os.dup(its) if stdout is None else os.open(stdout, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._process = quick_python.start(words, (its, out, its), env=env, on_terminal=True)
        self.pid = self._process.pid
        os.close(its)
        os.close(out)

    def setwinsize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.child_fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def send(self, text: str) -> int:
        time.sleep(self.delaybeforesend)  # as `pexpect.spawn` does: nobody types at once
        sent: int = super().send(text)
        return sent

    def sendintr(self) -> None:
        self.send("\x03")

    def wait(self) -> int:
        code = self._process.wait()
        self.exitstatus, self.signalstatus = (code, None) if code >= 0 else (None, -code)
        return code

    def close(self, force: bool = True) -> None:
        super().close()
        if force:
            self._process.kill()
        self._process.wait()
