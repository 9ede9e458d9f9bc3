"""A training that clients attach to, in a thread of this process."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from layerstep.assembly import assemble
from layerstep.config import Config
from layerstep.engine.session import Session
from layerstep.frontends.remote import hub as hub_module
from layerstep.frontends.remote.client import Client
from layerstep.frontends.remote.hub import Hub
from layerstep.frontends.remote.listening import listen_on


@pytest.fixture(autouse=True)
def runtime_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Short, as the paths of sockets must be."""
    folder = Path(tempfile.mkdtemp(prefix="ls", dir="/tmp"))
    monkeypatch.setenv("LAYERSTEP_RUNTIME_DIR", str(folder / "run"))
    yield folder / "run"
    shutil.rmtree(folder)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grace that a test can wait for."""
    monkeypatch.setattr(hub_module, "GRACE_SECONDS", 0.3)


def wait_for(what: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Wait until it is true."""
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until, "it never came"
        time.sleep(0.01)
    return found


class Training:
    """Steps of a small model in a thread, as long as it is told to."""

    def __init__(self, steps: int = 1_000_000) -> None:
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.session: Session = assemble(Config())
        self.hub: Hub | None = None
        self.done = 0
        self._steps = steps
        self._is_wanted = True
        self._thread = threading.Thread(target=self._train)
        self.losses: list[float] = []

    def listen(self, **options: Any) -> Training:
        self.session.add_model(self.model, "model")
        self.hub = listen_on(self.session, argv=["train.py"], **options)
        self.session.attach(discover=True)
        return self

    def start(self) -> Training:
        self._thread.start()
        return self

    def _train(self) -> None:
        torch.manual_seed(0)
        with torch.random.fork_rng():
            for parameter in self.model.parameters():
                nn.init.normal_(parameter)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        while self._is_wanted and self.done < self._steps:
            loss = self.model(torch.ones(2, 4) * (self.done % 7)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.losses.append(loss.item())
            self.done += 1
            time.sleep(0.001)

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()

    def end(self) -> None:
        self._is_wanted = False
        self.session.points.forget_until()
        if self.hub is not None:
            self.hub._hold, self.hub._left_at = False, float("-inf")
            self.hub.close()
        with contextlib.suppress(RuntimeError):  # it was never started
            self._thread.join(60)
        assert not self._thread.is_alive(), "the training hangs"
        self.session.detach()


@pytest.fixture
def training() -> Iterator[Training]:
    made = Training()
    yield made
    made.end()
    for connection in _opened:
        connection.close()
    _opened.clear()


_opened: list[Client | socket.socket] = []
"""Connections that the end of the test closes."""


class Talk(Client):
    """A client that keeps what it is told."""

    def __init__(self, name: str = "test", **options: Any) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []
        super().__init__(
            os.getpid(),
            name=name,
            notified=lambda method, params: self.told.append((method, params)),
            **options,
        )
        self.begin()
        _opened.append(self)

    def say(self, line: str, **more: Any) -> dict[str, Any]:
        return self.request("submit", line=line, **more).result(30)

    def states(self, kind: str = "paused") -> list[dict[str, Any]]:
        return [params for method, params in self.told if method == "state" and params["kind"] == kind]

    def next_stop(self, after: int = 0) -> dict[str, Any]:
        return wait_for(lambda: next((each for each in self.states() if each["stop"] > after), None))

    def stop_at(self, line: str) -> dict[str, Any]:
        self.say(line)
        return self.next_stop()


def raw(pid: int | None = None) -> socket.socket:
    """A connection without manners."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(f"{os.environ['LAYERSTEP_RUNTIME_DIR']}/{pid or os.getpid()}.sock")
    connection.settimeout(20)
    _opened.append(connection)
    return connection


def rest_of(connection: socket.socket) -> bytes:
    """All that comes until the other end closes."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(1 << 16):
            found += data
    return found


def hello(**more: Any) -> bytes:
    params = {"protocol": 1, "client": "raw", **more}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "hello", "params": params}).encode() + b"\n"
