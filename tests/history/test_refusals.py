"""History is refused in one line where a fork could not go on as the run would."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from layerstep.assembly import assemble
from layerstep.config import Config
from layerstep.engine.session import Session
from layerstep.history import forking, refusals
from layerstep.history.history import History
from layerstep.history.refusals import trial, why_not
from layerstep.module_paths.models import Models
from layerstep.views import Notice

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="checkpoints need Linux"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest-xdist has threads of its own."""
    main = threading.main_thread()
    frame = sys._getframe()
    monkeypatch.setattr(threading, "enumerate", lambda: [main])
    monkeypatch.setattr(threading, "current_thread", lambda: main)
    monkeypatch.setattr(refusals, "frames_of_threads", lambda: {main.ident: frame})


def refused(session: Session) -> str:
    answer = session.prompt.answer("history on")
    assert isinstance(answer, Notice) and answer.level == "error", answer
    assert "\n" not in answer.text and not session.instruments.get(History).is_on
    return answer.text


@pytest.fixture
def session() -> Session:
    return assemble(Config())


def test_a_process_with_one_thread_may(alone: None, session: Session) -> None:
    answer = session.prompt.answer("history on every 3")
    assert isinstance(answer, Notice) and answer.level == "good" and "every 3 training steps" in answer.text
    assert "twice" in answer.hint  # open files are shared
    assert "history is off" in str(session.prompt.answer("history off"))


def test_other_threads(session: Session) -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="feeder")
    thread.start()
    try:
        assert "other threads, which a fork loses" in refused(session)
    finally:
        done.set()
        thread.join()


def test_a_training_in_a_thread(session: Session) -> None:
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(why_not(Models())))
    thread.start()
    thread.join()
    assert "only the main thread" in said[0]


def test_worker_processes(alone: None, session: Session) -> None:
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(100,), daemon=True)
    worker.start()
    try:
        assert "1 worker process of the program is alive" in refused(session)
    finally:
        worker.kill()
        worker.join()


def test_a_process_group(alone: None, session: Session, tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/g", rank=0, world_size=1)
    try:
        assert "a process group exists" in refused(session)
    finally:
        torch.distributed.destroy_process_group()


def test_an_accelerator(alone: None, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert "an accelerator is in use" in refused(session)


def test_another_system(alone: None, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "checkpoints need Linux; this is darwin" in refused(session)


def test_shared_memory(alone: None, session: Session) -> None:
    model = nn.Linear(2, 2).share_memory()
    session.add_model(model)
    assert "weight is in memory that processes share" in refused(session)


def test_a_fork_that_hangs(alone: None, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """With libgomp's pool as it is, the child waits for threads that it does not have."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(forking, "_release_pool", lambda: None)
    try:
        assert "did not compute within 2 s" in refused(session)
        monkeypatch.undo()
        assert trial() == ""
    finally:
        torch.set_num_threads(threads)


def test_a_fork_that_waits_for_its_turn_on_a_busy_machine(
    alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compute() -> bytes:
        until = time.process_time() + 0.3
        while time.process_time() < until:
            pass
        return b"done"

    monkeypatch.setattr(refusals, "TRIAL_SECONDS", 0.05)
    monkeypatch.setattr(refusals, "_computed", compute)
    assert trial() == ""


def test_a_fork_with_other_bits(alone: None, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "_computed", lambda: str(os.getpid()).encode())
    assert "computed other bits" in refused(session)


def test_nothing_to_go_back_to(session: Session) -> None:
    answer = session.prompt.answer("back step")
    assert isinstance(answer, Notice) and answer.level == "error" and "history is off" in answer.text


def test_workers_that_come_later_are_told_once(
    alone: None, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps with them get no checkpoint, and `back step` gives the reason."""
    said: list[str] = []
    session.listen(lambda message: said.append(str(message.view)))
    session.attach()
    try:
        assert "good" in str(session.prompt.answer("history on"))
        monkeypatch.setattr(refusals, "live_children", lambda: "2 workers are alive")
        weight = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(3):
            weight.grad = torch.ones(2)
            optimizer.step()
        assert "2 workers are alive" in str(session.prompt.answer("back step"))
        assert "2 workers are alive" in str(session.prompt.answer("history"))
    finally:
        session.detach()
    assert len([text for text in said if "no checkpoint: 2 workers are alive" in text]) == 1
