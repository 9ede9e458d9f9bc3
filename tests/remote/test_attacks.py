"""What is not a client of this user is refused: nothing of it is run, and the run goes on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import time
from pathlib import Path

import pytest

from attached_training import Talk, Training, hello, raw, rest_of, wait_for
from layerstep.errors import UserError
from layerstep.frontends.remote import connection as connection_module
from layerstep.frontends.remote.sockets import connect, listening_processes

REQUEST = {"jsonrpc": "2.0", "id": 2, "method": "submit", "params": {"line": "!planted = 1"}}
PLANTED = json.dumps(REQUEST).encode()


def is_unharmed(training: Training) -> bool:
    """Nothing was run, and the training goes on."""
    before = training.done
    wait_for(lambda: training.done > before)
    return not Talk().request("submit", line="planted").result(10)["view"]["text"].startswith("1")


@pytest.mark.parametrize("verb", ["GET", "POST", "CONNECT"])
def test_http_is_closed_before_its_body_is_read(training: Training, verb: str) -> None:
    training.listen().start()
    connection = raw()
    connection.sendall(
        f"{verb} / HTTP/1.1\r\nContent-Length: {len(PLANTED)}\r\n\r\n".encode() + PLANTED + b"\n"
    )
    assert b'"result"' not in rest_of(connection)
    assert is_unharmed(training)


@pytest.mark.parametrize(
    "line",
    [
        PLANTED,  # no hello before
        b'{"jsonrpc":"2.0","id":1,"method":"hello","params":{"protocol":99}}',
        b'{"jsonrpc":"2.0","id":1,"method":"hello","params":{"protocol":1,"mode":"root"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"hello","params":{"protocol":NaN}}',
        b'{"jsonrpc":"2.0","id":1,"method":"bye","method":"hello","params":{"protocol":1}}',
        b'{"id":1,"method":"hello","params":{"protocol":1}}',
        b'{"jsonrpc":"2.0","id":1,"method":"hello","params":[1]}',
        b"[" * 1_000_000,
        b'{"a":' * 100_000,
        b'{"x":"' + b"y" * (2 << 20) + b'"}',
        b"\xff\xfe{}",
        b"{\xff}",
        b"",
    ],
    ids=lambda line: line[:24],
)
def test_what_is_no_hello_is_closed(training: Training, line: bytes) -> None:
    training.listen().start()
    connection = raw()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection_module, "HELLO_SECONDS", 0.5)  # an empty line is no mistake, only silence
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(line + b"\n" + PLANTED + b"\n")
        assert b'"result"' not in rest_of(connection)
    assert is_unharmed(training)


def test_a_second_hello_is_closed(training: Training) -> None:
    training.listen().start()
    connection = raw()
    connection.sendall(hello() + hello() + PLANTED + b"\n")
    assert rest_of(connection).count(b'"result"') == 1
    assert is_unharmed(training)


def test_half_a_line_is_not_waited_for(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "HELLO_SECONDS", 0.3)
    training.listen().start()
    connection = raw()
    connection.sendall(hello()[:20])
    assert rest_of(connection) == b""


def test_two_hundred_connections(training: Training) -> None:
    training.listen().start()
    many = []
    for _ in range(200):
        try:
            many.append(raw())
        except BlockingIOError:  # the queue of the socket is full: as good as refused
            time.sleep(0.01)
    before = training.done
    wait_for(lambda: training.done > before + 20)
    for each in many:
        each.close()
    assert wait_for(lambda: _hello_works())


def _hello_works() -> bool:
    try:
        Talk()
    except UserError:
        return False
    return True


@pytest.mark.parametrize(
    "line",
    [
        "!x = 1",
        "print 1",
        "x = 1",
        "out",
        'break 0 if __import__("os").system("true")',
        "log 0 \"{__import__('os')}\"",
        "watch 1 + 1",
        "set out = 0",
        "continue",
        "quit",
        "save /tmp/nothing",
        "export x.json",
        "source x",
        "help model",
        "alias where = !x",
        "",
    ],
)
def test_a_client_that_may_only_look_does_nothing_else(training: Training, line: str) -> None:
    training.listen().start()
    Talk().stop_at("break 0")
    viewer = Talk("viewer", mode="view")
    with pytest.raises(UserError, match="only look"):
        viewer.say(line)
    assert viewer.say("where")["view"]["is"] == "Stack"
    with pytest.raises(UserError, match="only look"):
        viewer.request("interrupt").result(10)


def test_an_alias_does_not_widen_what_a_viewer_may_do(training: Training) -> None:
    training.listen().start()
    talk = Talk()
    talk.stop_at("break 0")
    talk.say("alias tree = !1 + 1")
    talk.say("alias mine = print 1")
    viewer = Talk("viewer", mode="view")
    with pytest.raises(UserError, match="only look"):
        viewer.say("mine")


def test_the_socket_is_for_its_user_alone(training: Training, runtime_dir: Path) -> None:
    training.listen()
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in runtime_dir.iterdir()}
    assert files == {f"{os.getpid()}.sock": 0o600, f"{os.getpid()}.json": 0o600}
    assert stat.S_IMODE(runtime_dir.stat().st_mode) == 0o700


@pytest.mark.parametrize("kind", ["open", "link", "file"])
def test_a_directory_that_is_not_safe_is_refused(training: Training, runtime_dir: Path, kind: str) -> None:
    if kind == "open":
        runtime_dir.mkdir(mode=0o777)
        runtime_dir.chmod(0o777)
    elif kind == "link":
        (runtime_dir.parent / "real").mkdir(mode=0o700)
        runtime_dir.symlink_to(runtime_dir.parent / "real")
    else:
        runtime_dir.write_text("")
    with pytest.raises(UserError, match=re.escape(str(runtime_dir))):
        training.listen()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_directory_of_another_user_is_refused(training: Training, runtime_dir: Path) -> None:
    runtime_dir.mkdir(mode=0o700)
    os.chown(runtime_dir, 65534, 65534)
    with pytest.raises(UserError, match="another user"):
        training.listen()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("is_opened", [False, True])
def test_another_user_is_refused(training: Training, runtime_dir: Path, is_opened: bool) -> None:
    training.listen()
    if is_opened:  # by mistake: then the socket asks who is there
        for path in (runtime_dir.parent, runtime_dir, *runtime_dir.iterdir()):
            path.chmod(0o777)
    told, telling = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgid(65534)
        os.setuid(65534)
        try:
            connection = raw(os.getppid())
            connection.sendall(hello() + PLANTED + b"\n")
            answer = rest_of(connection)
        except OSError as error:
            answer = type(error).__name__.encode()
        os.write(telling, answer or b"closed")
        os._exit(0)
    os.waitpid(child, 0)
    answer = os.read(told, 1 << 16)
    os.close(told)
    os.close(telling)
    assert answer in (
        (b"closed", b"BrokenPipeError", b"ConnectionResetError") if is_opened else (b"PermissionError",)
    )


def test_a_socket_that_is_there_already_is_replaced(training: Training, runtime_dir: Path) -> None:
    runtime_dir.mkdir(mode=0o700)
    (runtime_dir / f"{os.getpid()}.sock").symlink_to("/etc/passwd")
    (runtime_dir / f"{os.getpid()}.json").symlink_to(runtime_dir.parent / "elsewhere")
    training.listen()
    assert Talk().hello["pid"] == os.getpid()
    assert not (runtime_dir.parent / "elsewhere").exists()


def test_what_a_dead_process_left_is_removed(runtime_dir: Path) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    runtime_dir.mkdir(mode=0o700)
    for suffix in ("sock", "json"):
        (runtime_dir / f"{child}.{suffix}").write_text("{}")
    assert listening_processes() == []
    assert not list(runtime_dir.iterdir())
    with pytest.raises(UserError, match="does not listen"):
        connect(child)


def test_a_forked_worker_holds_no_descriptor(training: Training) -> None:
    training.listen().start()
    talk = Talk()
    talk.stop_at("break 0")
    hub = training.hub
    assert hub is not None
    numbers = [hub._listener.fileno(), hub._woken.fileno(), *(each.socket.fileno() for each in hub._clients)]
    inodes = {os.fstat(number).st_ino for number in numbers}
    child = os.fork()
    if child == 0:
        held = set()
        for number in range(3, 256):
            try:
                held.add(os.fstat(number).st_ino)
            except OSError:
                continue
        os._exit(len(held & inodes))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert "Linear" in str(talk.say("where"))  # the parent listens still
