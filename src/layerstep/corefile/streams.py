"""The random streams of a run, as data; and how to turn them back to before a call.

At a module's exit the streams are past what it drew. A trial run tells how many numbers the call draws,
and the streams are turned back by as many. So nothing has to be kept while a model runs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerstep._torch.generators import cpu_words, cuda_count, with_cpu_words, with_cuda_count
from layerstep.corefile.mersenne_twister import Twister, same_block
from layerstep.errors import RecordingError
from layerstep.side_effects.random_streams import RandomState, same_state

__all__ = ["Streams"]


class Streams:
    """The random streams of a run at one point in time."""

    def __init__(self, state: RandomState | None = None) -> None:
        self.state = state or RandomState()

    def encode(self, encode: Callable[[Any, str], Any]) -> dict[str, Any]:
        """The streams as data; `encode` handles tensors."""
        state = self.state
        return {
            "torch": encode(state.torch, "random.torch"),
            "cuda": encode(list(state.cuda), "random.cuda"),
            "python": encode(state.python, "random.python"),
            "numpy": _encoded(state.numpy),
        }

    @classmethod
    def decode(cls, data: dict[str, Any], decode: Callable[[Any], Any]) -> Streams:
        state = RandomState()
        state.torch, state.cuda = decode(data["torch"]), decode(data["cuda"])
        state.python = decode(data["python"])
        try:
            state.bits, state.numpy = None, _decoded(data["numpy"])
            random.Random().setstate(state.python)
            if state.numpy is not None:
                np.random.RandomState().set_state(state.numpy)
            torch.Generator().set_state(state.torch)
        except (ValueError, TypeError, RuntimeError):
            raise RecordingError("its random streams cannot be read") from None
        return cls(state)

    def restore(self) -> None:
        """Put the process's streams to this state, except those of devices that are not here."""
        state = self.state
        torch.set_rng_state(state.torch)
        for number, one in enumerate(state.cuda[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(one, number)
        random.setstate(state.python)
        if state.numpy is not None and _is_twister(np.random.get_state(legacy=False)):
            np.random.set_state(state.numpy)

    def before(self, start: Streams, end: Streams) -> Streams | None:
        """These streams turned back by what was drawn from `start` to `end`; None if that is impossible."""
        turned = RandomState()
        turned.torch, turned.cuda = self.state.torch, list(self.state.cuda)
        turned.python, turned.numpy = self.state.python, self.state.numpy
        turned.bits = self.state.bits
        trio = [_twisters(streams.state) for streams in (self, start, end)]
        for name in ("torch", "python", "numpy"):
            mine, first, last = (twisters.get(name) for twisters in trio)
            if name == "numpy" and same_state(start.state.numpy, end.state.numpy):
                continue
            if mine is None or first is None or last is None:
                return None
            drawn = first.behind(last)
            if drawn is None:
                return None
            if drawn:
                _set_twister(turned, name, mine.back(drawn))
        for number, one in enumerate(turned.cuda):
            if number < len(start.state.cuda) and number < len(end.state.cuda):
                drawn = cuda_count(end.state.cuda[number]) - cuda_count(start.state.cuda[number])
                turned.cuda[number] = with_cuda_count(one, cuda_count(one) - drawn)
        return Streams(turned)

    def same_as(self, other: Streams) -> bool:
        """Would both draw the same numbers next?"""
        mine, theirs = _twisters(self.state), _twisters(other.state)
        return all(
            name in theirs
            and twister.used == theirs[name].used
            and same_block(twister.words, theirs[name].words)
            for name, twister in mine.items()
        )


def _twisters(state: RandomState) -> dict[str, Twister]:
    _, numbers, _ = state.python
    found = {
        "torch": _torch_twister(state.torch),
        "python": Twister(np.array(numbers[:-1], dtype=np.uint32), numbers[-1]),
        "numpy": _numpy_twister(state.numpy),
    }
    return {name: twister for name, twister in found.items() if twister is not None}


def _torch_twister(state: Tensor) -> Twister | None:
    found = cpu_words(state)
    return Twister(*found) if found is not None else None


def _is_twister(state: Any) -> bool:
    return isinstance(state, dict) and state.get("bit_generator") == "MT19937"


def _numpy_twister(state: Any) -> Twister | None:
    if not _is_twister(state):  # the program has chosen another bit generator: it is not turned back
        return None
    return Twister(np.asarray(state["state"]["key"], dtype=np.uint32), int(state["state"]["pos"]))


def _encoded(state: Any) -> list[Any] | None:
    """The form in the file; None for another bit generator than numpy's default."""
    if not _is_twister(state):
        return None
    words, used = state["state"]["key"], state["state"]["pos"]
    return [
        "MT19937",
        np.asarray(words).tolist(),
        int(used),
        int(state["has_gauss"]),
        float(state["gauss"]),
    ]


def _decoded(data: Any) -> Any:
    if data is None:
        return None
    name, words, used, has_gauss, gauss = data
    state = {"key": np.array(words, dtype=np.uint32), "pos": used}
    return {"bit_generator": name, "state": state, "has_gauss": has_gauss, "gauss": gauss}


def _set_twister(state: RandomState, name: str, twister: Twister) -> None:
    if name == "torch":
        state.torch = with_cpu_words(state.torch, twister.words, used=twister.used)
    elif name == "python":
        version, _, gauss = state.python
        state.python = (version, (*map(int, twister.words), twister.used), gauss)
    else:
        state.numpy = {**state.numpy, "state": {"key": twister.words, "pos": twister.used}}
