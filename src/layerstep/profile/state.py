"""What a session knows about time: its profile, the counted operations, and profiles saved by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from layerstep.engine.instrument import Instrument
from layerstep.engine.session import Session
from layerstep.profile.advice import Advice, Evidence, advise
from layerstep.profile.call_times import Cost
from layerstep.profile.compare import Saved
from layerstep.profile.operations import OpCounts, count_ops
from layerstep.profile.profiling import WARM_UP, Profile
from layerstep.profile.report import Measured, measure
from layerstep.profile.roofline import Roofline, probe
from layerstep.profile.saved_memory import saved_by_module
from layerstep.profile.stamp_cost import calibrate

__all__ = ["KernelProfile", "ProfileState", "state_of"]


class KernelProfile(Profile):
    """torch's own profiler over some steps."""


@dataclass(slots=True)
class ProfileState(Instrument):
    """Kept between the lines of a session."""

    session: Session
    profile: Profile = field(init=False)
    looked: OpCounts = field(default_factory=OpCounts)
    saved: dict[str, Saved] = field(default_factory=dict)
    kernels: KernelProfile | None = None
    """Of `profile ops`: torch's own profiler over some steps."""
    _cost: Cost | None = None
    _rooflines: dict[str, Roofline | None] = field(default_factory=dict)
    _measured: tuple[object, Measured] | None = None

    def __post_init__(self) -> None:
        self.profile = self.session.instruments.get(Profile)

    def start(self, wanted: int | None, *, warm_up: int = WARM_UP) -> None:
        """Begin to time, and count the operations in a step that is left out."""
        self.looked = OpCounts()
        self.profile.inspector = self._look
        self.profile.on_restart = self._forget
        self.profile.start(wanted, warm_up=warm_up)

    def _forget(self) -> None:
        self.looked, self._measured = OpCounts(), None

    def _look(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> bool:
        """Count the operations of a call; False if that was not possible."""
        saved = saved_by_module(self.profile.clock.log, module, (args, kwargs), output)
        found = count_ops(self.session, self.profile, module, args, kwargs)
        found.saved = saved
        self.looked.trouble = ""
        self.looked.add(found)
        self._measured = None
        return not found.trouble

    @property
    def mark_cost(self) -> Cost:
        """What a mark costs here; measured once."""
        if self._cost is None:
            self._cost = calibrate()
        return self._cost if self.profile.clock.stamps.is_host else Cost()

    @property
    def roofline(self) -> Roofline | None:
        """What the device achieves, measured once. None where that cannot be measured."""
        device = self.profile.clock.stamps.device
        if device not in self._rooflines:
            try:
                self._rooflines[device] = probe(device)
            except Exception:  # a device without these operations, or whose memory is full
                self._rooflines[device] = None
        return self._rooflines[device]

    def measured(self) -> Measured:
        """The times of all steps so far, computed again only when there are new ones."""
        steps = self.profile.steps
        mark = (len(steps), id(steps[-1]) if steps else 0, id(self.looked))
        if self._measured is None or self._measured[0] != mark:
            found = measure(self.profile, self.mark_cost)
            if not found.is_blind:
                self._add_flops(found)
            self._add_memory(found)
            self._measured = (mark, found)
        return self._measured[1]

    def _add_flops(self, found: Measured) -> None:
        rows = {row.path: row for row in found.rows}
        for key, flops in self.looked.flops.items():
            row = rows.get(found.modules[key].path) if 0 <= key < len(found.modules) else None
            if row is None:
                continue
            row.own_flops += flops
            seen: set[str] = set()
            while row is not None and row.path not in seen:
                seen.add(row.path)
                row.flops += flops
                row = rows.get(row.parent) if row.parent else None
        for key, timed in enumerate(found.modules):
            row = rows.get(timed.path)
            if row is not None and row.own_flops:
                calls = found.typical(row.calls)
                row.work = row.own_flops * calls / max(1, self.looked.entered[key])

    def _add_memory(self, found: Measured) -> None:
        rows = {row.path: row for row in found.rows}
        for key, timed in enumerate(found.modules):
            row = rows.get(timed.path)
            if row is not None:
                row.saved = max(row.saved, self.looked.saved[key])
                row.needed = max(row.needed, self.looked.needed[key])

    def advice(self) -> list[Advice]:
        """The advice from the numbers. Probes the machine only if there are products to judge."""
        measured = self.measured()
        if not measured.steps:
            return []
        roofline = self.roofline if self.looked.flops and not measured.is_blind else None
        return advise(Evidence(measured, self.looked, self.profile.lines, roofline))


def state_of(session: Session) -> ProfileState:
    """What a session knows about time; made when it is first asked for."""
    return session.instruments.get(ProfileState)
