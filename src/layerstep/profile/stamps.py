"""Where the times of marks come from: the clock of the processor, or events of an accelerator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from layerstep.profile import machine

__all__ = ["DeviceStamps", "HostStamps", "Mark", "Stamps", "stamps_for"]

Mark = tuple[int, Any, Any, int, int]
"""A mark: what happened, when our own work on it began and ended, the key of the module, an autograd number.

ENTER and EXIT have the number that the next node gets. A plain tuple, because a named one takes 0.6 µs to
make.
"""
NO_CLOCK = ("cpu", "meta")
NAMED = 3


class HostStamps:
    """The clock of the processor. `device` is where the model runs, `note` what to know about that."""

    is_host = True

    def __init__(self, device: str = "cpu", note: str = "") -> None:
        self.device, self.note = device, note
        self.now: Callable[[], Any] = machine.clock()
        self.then: Callable[[], Any] = self.now
        """The end of our own work on a mark."""


class DeviceStamps:
    """Events on the current stream of an accelerator, read together after one synchronization.

    The time between two events is the device's own, however far ahead the host is. It is tried once,
    when it is made, and raises if the device cannot time.
    """

    is_host = False

    def __init__(self, device: str, record: Callable[[], Any], *, note: str = "") -> None:
        self.device, self.note = device, note
        self.now = record
        self.then: Callable[[], Any] = _nothing  # our own work takes no time of the device
        first, second = self.now(), self.now()
        second.synchronize()
        first.elapsed_time(second)
        self._epoch, self._epoch_on_host = second, machine.clock()()
        self.cost = min(_seconds(self.now) for _ in range(5))
        """Seconds of the host for an event."""

    def wait_for(self, marks: list[Mark]) -> None:
        """Wait until the device has reached the last of these marks, and so all before it."""
        marks[-1][2].synchronize()

    def has_passed(self, marks: list[Mark]) -> bool:
        return bool(marks[-1][2].query())

    def nanoseconds(self, marks: list[Mark]) -> list[Mark]:
        """The marks of one step that has passed, on the clock of the host.

        Times in a step count from its first mark, because an event tells milliseconds as a float of 32 bits.
        """
        first, times = marks[0][1], dict[int, int]()
        base = self._epoch_on_host + round(self._epoch.elapsed_time(first) * 1e6)

        def read(event: Any) -> int:
            if id(event) not in times:
                since = first.elapsed_time(event) if event is not first else 0.0
                times[id(event)] = base + round(since * 1e6)
            return times[id(event)]

        return [(kind, read(since), read(until), key, count) for kind, since, until, key, count in marks]


Stamps = HostStamps | DeviceStamps


def _nothing() -> None:
    """The end of our work needs no event of its own."""


def _seconds(run: Callable[[], Any]) -> float:
    begin = machine.now()
    run()
    return machine.now() - begin


def _on_stream(device: torch.device) -> Any:
    """torch's own event, on the current stream of this device, also if another device is current."""
    event = torch.Event(device, enable_timing=True)
    event.record(torch.accelerator.current_stream(device))
    return event


def _of_module(kind: Any) -> Any:
    """The event class of a device's own module, such as `torch.cuda.Event`."""
    event = kind(enable_timing=True)
    event.record()
    return event


def stamps_for(modules: Iterable[tuple[str, nn.Module]]) -> Stamps:
    """The stamps of the accelerator that holds most of the weights, else of the processor."""
    held, paths = Counter[torch.device](), dict[torch.device, list[str]]()
    for path, module in modules:
        own = [p for p in module._parameters.values() if p is not None and p.device.type != "meta"]
        for device in {p.device for p in own}:
            held[device] += sum(_bytes(p) for p in own if p.device == device)
            paths.setdefault(device, []).append(path)
    there = [device for device, _ in held.most_common() if device.type not in NO_CLOCK]
    if not there:
        return HostStamps()
    device = there[0]
    note = _elsewhere(device, {other: found for other, found in paths.items() if other != device})
    event = getattr(torch.get_device_module(device), "Event", None)
    for record in (partial(_on_stream, device), partial(_of_module, event)):
        try:
            return DeviceStamps(str(device), record, note=note)
        except Exception:
            continue
    blind = f"{device} does not time its events: these are times of the host, which may run ahead of it"
    return HostStamps(str(device), blind)


def _bytes(parameter: torch.Tensor) -> int:
    try:
        return parameter.numel() * parameter.element_size()
    except Exception:  # a lazy parameter has no size yet
        return 0


def _elsewhere(device: torch.device, others: dict[torch.device, list[str]]) -> str:
    parts = [f"on {device}, by its events"]
    for other, paths in others.items():
        named = ", ".join(paths[:NAMED]) + (" …" if len(paths) > NAMED else "")
        parts.append(f"{named} on {other}: timed as far as {device} waits for it")
    return "; ".join(parts)
