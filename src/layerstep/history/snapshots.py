"""Snapshots: the state of the training alone, on any device. The program itself does not go back."""

from __future__ import annotations

from layerstep.engine.instrument import Instrument
from layerstep.engine.pause import Pause
from layerstep.engine.resume import Resume
from layerstep.engine.session import Session
from layerstep.errors import UserError
from layerstep.history.history import History
from layerstep.history.state import Snapshot, find_trained, put_back, take
from layerstep.side_effects.guard import Outcome
from layerstep.side_effects.random_streams import RandomState
from layerstep.tensors.format import human_bytes
from layerstep.training_steps.steps import Stepped
from layerstep.views import Notice

__all__ = ["StateSnapshots"]


class StateSnapshots(Instrument):
    """Keeps the snapshots of a session within a budget, and puts one back when the run can bear it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.by_name: dict[str, Snapshot] = {}
        self._number = 0
        self._waiting: Snapshot | None = None
        """To be put back at the end of this training step."""
        self._streams: RandomState | None = None
        """To be put back when the pause ends: what a line does to random streams is undone at its end."""

    @property
    def size(self) -> int:
        return sum(each.size for each in self.by_name.values())

    def take(self, name: str) -> Snapshot:
        """Keep the state under a name; without one, under the next number."""
        session = self._session
        trained = find_trained(session.run.models)
        if not trained.tensors:
            raise UserError("there is no state to keep: no model has run yet", "`continue` to a stop")
        budget = session.run.config.snapshot_bytes
        free = budget - sum(each.size for kept, each in self.by_name.items() if kept != name)
        if trained.size > free:
            raise UserError(
                f"a snapshot takes {human_bytes(trained.size)}, and {human_bytes(max(free, 0))} are free",
                f"`config snapshot_bytes N` allows more than {human_bytes(budget)}",
            )
        if not name:
            self._number += 1
            name = str(self._number)
        self.by_name[name] = snapshot = take(name, session.run.training.count, trained)
        return snapshot

    def find(self, name: str) -> Snapshot:
        if name not in self.by_name:
            known = f"there are: {', '.join(self.by_name)}" if self.by_name else "`snapshot` takes one"
            raise UserError(f"there is no snapshot {name!r}", known)
        return self.by_name[name]

    def restore(self, snapshot: Snapshot) -> bool:
        """Put the state back; False if that waits for the end of the training step.

        A graph that was built from the weights as they are needs them for its backward.
        """
        is_free = self._session.instruments.get(History).is_between_steps or not snapshot.optimizers
        if is_free:
            self._put_back(snapshot)
            self._streams = snapshot.streams
        else:
            self._waiting = snapshot
            self._listen(True)
        return is_free

    def resuming(self, pause: Pause, resume: Resume) -> None:
        self._restore_streams()

    def clear(self) -> None:
        self._listen(False)
        if self._waiting is not None:
            text = f"snapshot {self._waiting.name} is not restored: this training step had not ended"
            self._session.say(Notice(text, level="warn"))
        self._waiting = None
        self._restore_streams()

    def cost(self) -> list[str]:
        return [f"{len(self.by_name)} snapshots hold {human_bytes(self.size)}"] if self.by_name else []

    def _listen(self, wanted: bool) -> None:
        training = self._session.run.training
        training.listen(training.after, self._stepped, wanted)

    def _stepped(self, stepped: Stepped) -> None:
        """Of several optimizers the last: before it steps, a graph may still need the weights."""
        last = max(each.number for each in self._session.run.training.optimizers)
        if self._session.run.is_silent or self._waiting is None or stepped.number != last:
            return
        snapshot, self._waiting = self._waiting, None
        self._listen(False)
        self._put_back(snapshot)
        self._streams = snapshot.streams
        self._restore_streams()
        text = f"snapshot {snapshot.name} is restored: the state after {snapshot.step} training steps"
        self._session.say(Notice(text, "the script goes on with its next batch", level="good"))

    def _restore_streams(self) -> None:
        if self._streams is not None:
            self._streams.restore()
            self._streams = None

    def _put_back(self, snapshot: Snapshot) -> None:
        missed = put_back(snapshot)
        if missed:
            more = f" and {len(missed) - 3} more" if len(missed) > 3 else ""
            self._session.say(Notice(f"not restored: {', '.join(missed[:3])}{more}", level="warn"))
        effects = self._session.prompt.effects
        what = ["weights and buffers", "random streams"]
        what += ["the state of optimizers"] if snapshot.optimizers else []
        what += ["schedulers and scalers"] if snapshot.others else []
        effects.disturbed.append((f"restore {snapshot.name}", Outcome(changed=what)))
        effects.baseline = None  # `perturbed?` would name each tensor once more
