"""Why the process cannot be forked, in one line; and a trial that proves that it can."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import sys
import threading
from pathlib import Path

import torch

from layerstep.history.forking import fork_process, held_signals
from layerstep.module_paths.models import Models
from layerstep.process.thread_frames import frames_of_threads
from layerstep.tensors.observing import observing

__all__ = ["live_children", "trial", "why_not"]

TRIAL_SECONDS = 2.0
MOST_TRIAL_SECONDS = 60.0
"""For a fork that computes, or waits for its turn on a busy machine. One that sleeps hangs."""
_ELEMENTS = 1 << 18
"""Enough for every thread of the pool: torch splits loops of more than 32,768 elements."""
_SIDE = 192
"""Of a matrix product, which another library may run in threads of its own."""


def why_not(models: Models) -> str:
    """What keeps a fork from going on as the run would; empty if nothing is known to."""
    if not sys.platform.startswith("linux"):
        return f"checkpoints need Linux; this is {sys.platform}"
    if torch.cuda.is_initialized() or (hasattr(torch, "xpu") and torch.xpu.is_initialized()):
        return "an accelerator is in use, and its state does not survive a fork"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return "a process group exists, and its connections cannot go back"
    return live_children() or _other_threads() or _shared(models)


def live_children() -> str:
    """Which processes of the program are alive, as a reason."""
    count = len(multiprocessing.active_children())
    if not count:
        return ""
    what = "worker process of the program is" if count == 1 else "worker processes of the program are"
    return f"{count} {what} alive (num_workers of a DataLoader?), and cannot go back"


def _shared(models: Models) -> str:
    """Shared memory is one memory in all processes: a checkpoint would see what the run writes."""
    for path, module in models.everything():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and tensor.is_shared():
                return f"{path}.{name} is in memory that processes share, and that cannot go back"
    return ""


def _other_threads() -> str:
    """A fork has one thread: the others of the program would be missing."""
    if threading.current_thread() is not threading.main_thread():
        return "the program trains in a thread, and only the main thread can be forked"
    threads = threading.enumerate()
    others = [each.name for each in threads if each is not threading.main_thread() and not _is_idle(each)]
    if frames_of_threads().keys() - {each.ident for each in threads}:
        others.append("one that Python's module threading does not know")
    if not others:
        return ""
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return f"the program has other threads, which a fork loses: {others[0]}{more}"


def _is_idle(thread: threading.Thread) -> bool:
    """Ours wait while the run goes on; tqdm's monitor only draws bars again that have stood still."""
    return thread.name.startswith("layerstep") or type(thread).__module__.startswith("tqdm.")


def trial() -> str:
    """Fork once and let the child compute in parallel; why that failed, or nothing."""
    with observing():
        expected = _computed()
    reading, writing = os.pipe()
    try:
        with held_signals():
            child = fork_process()
            if child == 0:
                _answer(writing)
        return _judge(child, reading, expected)
    except OSError as error:
        return f"the process cannot be forked: {error.strerror or error}"
    finally:
        os.close(reading)
        os.close(writing)


def _judge(child: int, reading: int, expected: bytes) -> str:
    waited = 0.0
    while not (ready := _has_answered(reading, TRIAL_SECONDS)) and waited < MOST_TRIAL_SECONDS:
        waited += TRIAL_SECONDS
        if _is_asleep(child):
            ready = _has_answered(reading, 0)
            break
    found = os.read(reading, 1024) if ready else b""
    with contextlib.suppress(OSError):
        os.kill(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
    if not ready:
        return f"a fork that was tried did not compute within {waited:g} s"
    return "" if found == expected else "a fork that was tried computed other bits than the run"


def _has_answered(reading: int, seconds: float) -> bool:
    return bool(select.select([reading], [], [], seconds)[0])


def _is_asleep(process: int) -> bool:
    """Does every thread of it wait for another one? Also if it is not known."""
    with contextlib.suppress(OSError, IndexError):
        threads = Path(f"/proc/{process}/task").glob("*/stat")
        return all(each.read_text().rpartition(")")[2].split()[0] not in "RD" for each in threads)
    return True


def _answer(writing: int) -> None:
    """In the child of a trial, which ends here."""
    try:
        with observing():
            os.write(writing, _computed())
    finally:
        os._exit(0)


def _computed() -> bytes:
    """A loop over many elements, a product of matrices, and the backward of both."""
    with torch.inference_mode(False), torch.enable_grad():
        values = torch.linspace(-1.0, 1.0, _ELEMENTS).requires_grad_()
        matrix = values[: _SIDE * _SIDE].reshape(_SIDE, _SIDE)
        ((values * 1.7).sin().sum() + (matrix @ matrix).cos().sum()).backward()
    gradient = values.grad
    assert gradient is not None
    return repr((gradient.sum().item(), gradient.square().sum().item(), torch.get_num_threads())).encode()
