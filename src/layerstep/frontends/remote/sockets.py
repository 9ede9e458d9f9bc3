"""Where processes listen: a directory that only its user can enter, with a socket and a note for each."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import struct
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from layerstep.errors import UserError

__all__ = [
    "Process",
    "connect",
    "facts_of_this_process",
    "is_listening",
    "listening_processes",
    "open_socket",
    "peer_is_allowed",
    "remove_socket",
]

MOST_PATH = 107
"""Bytes that the path of a unix socket may have on Linux; 103 on macOS."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that listens, as its note says."""

    pid: int
    argv: tuple[str, ...]
    cwd: str
    version: str
    python: str
    started: float
    rank: int | None = None

    @property
    def title(self) -> str:
        return (
            " ".join(os.path.basename(self.argv[0]).split() + list(self.argv[1:])) if self.argv else "python"
        )


def runtime_dir(*, create: bool = False) -> Path | None:
    """The directory of the sockets, checked: of this user, for this user alone. None if there is none yet."""
    folder = Path(os.environ.get("LAYERSTEP_RUNTIME_DIR") or _usual_dir())
    if create:
        try:
            folder.mkdir(mode=0o700, parents=bool(os.environ.get("LAYERSTEP_RUNTIME_DIR")), exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make {folder}", error.strerror or "") from None
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"cannot use {folder}", error.strerror or "") from None
    if not stat.S_ISDIR(found.st_mode):
        raise UserError(f"{folder} is not a directory", "remove it")
    if found.st_uid != os.getuid():
        raise UserError(f"{folder} belongs to another user", "set LAYERSTEP_RUNTIME_DIR to one of your own")
    if found.st_mode & 0o077:
        raise UserError(f"others may enter {folder}", f"chmod 700 {folder}")
    return folder


def _usual_dir() -> str:
    """As tmux: not $TMPDIR, which may differ between two terminals, and not the home, which may be on NFS."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    return os.path.join(given, "layerstep") if given else f"/tmp/layerstep-{os.getuid()}"


def open_socket(process: Process) -> tuple[socket.socket, Path]:
    """A socket that this process listens on, and its path."""
    folder = runtime_dir(create=True)
    assert folder is not None
    path = folder / f"{process.pid}.sock"
    if len(os.fsencode(path)) > MOST_PATH:
        raise UserError(
            f"the path {path} is too long for a socket", "set LAYERSTEP_RUNTIME_DIR to a shorter one"
        )
    remove_socket(path)  # of an earlier process with this number
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        os.chmod(path, 0o600)
        note = os.open(path.with_suffix(".json"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(note, "w", encoding="utf-8") as file:
            json.dump(asdict(process), file)
        listener.listen(16)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise UserError(f"cannot listen on {path}", error.strerror or "") from None
    return listener, path


def remove_socket(path: Path) -> None:
    """Remove a socket and its note."""
    for each in (path, path.with_suffix(".json")):
        with contextlib.suppress(OSError):
            each.unlink()


def listening_processes() -> list[Process]:
    """The processes of this user that listen, oldest first. What dead ones have left is removed."""
    folder = runtime_dir()
    found = []
    for path in sorted(folder.glob("*.sock")) if folder is not None else ():
        process = _note_of(path)
        if not _is_alive(path):
            remove_socket(path)
        elif process is not None:
            found.append(process)
    return sorted(found, key=lambda each: each.started)


def _note_of(path: Path) -> Process | None:
    try:
        data = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        return Process(**{**data, "argv": tuple(data["argv"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _is_alive(path: Path) -> bool:
    """Is the process there? A number may have been given to another one, so the socket is asked, too."""
    try:
        os.kill(int(path.stem), 0)
    except ValueError:
        return False
    except ProcessLookupError:
        return False
    except PermissionError:
        return False  # the number belongs to a process of another user now
    try:
        connect(int(path.stem)).close()
    except UserError:
        return False
    return True


def is_listening(pid: int) -> bool:
    """Has a process of this user opened its socket?"""
    folder = runtime_dir()
    return folder is not None and (folder / f"{pid}.sock").exists()


def connect(pid: int) -> socket.socket:
    """A connection to a process that listens."""
    folder = runtime_dir()
    path = folder / f"{pid}.sock" if folder is not None else None
    if path is None or not path.exists():
        raise UserError(f"process {pid} does not listen", _how_to_listen(pid))
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        client.connect(str(path))
    except OSError as error:
        client.close()
        raise UserError(f"cannot reach process {pid}", error.strerror or "") from None
    if not peer_is_allowed(client):
        client.close()
        raise UserError(f"the socket of process {pid} belongs to another user")
    return client


def _how_to_listen(pid: int) -> str:
    with contextlib.suppress(OSError):
        os.kill(pid, 0)
        return "start it with `layerstep run --listen`, or call `layerstep.listen()` in it"
    return "there is no such process"


def peer_is_allowed(connection: socket.socket) -> bool:
    """Is the other end a process of this user, or of root?"""
    uid = _peer_uid(connection)
    return uid in (os.getuid(), 0)


def _peer_uid(connection: socket.socket) -> int | None:
    if hasattr(socket, "SO_PEERCRED"):
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", data)[1])
    if sys.platform == "darwin":  # LOCAL_PEERCRED of SOL_LOCAL gives a struct xucred: version, uid, groups
        data = connection.getsockopt(0, 1, 76)
        return int(struct.unpack_from("2I", data)[1])
    return None


def facts_of_this_process(argv: tuple[str, ...], started: float) -> Process:
    """The note of this process."""
    rank: Any = os.environ.get("RANK", "")
    return Process(
        os.getpid(),
        argv,
        os.getcwd(),
        getattr(sys.modules["layerstep"], "__version__", ""),
        sys.version.split()[0],
        started,
        int(rank) if rank.isdigit() else None,
    )
