"""The run that is debugged: what is known of it, what it is to do next, and where it stands."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from layerstep.calls.stack import Frame
from layerstep.config import Config
from layerstep.engine import stepper
from layerstep.engine.pause import Pause
from layerstep.engine.restart import Follower, PassedCalls
from layerstep.expressions.recordings import Recordings
from layerstep.expressions.scope import Scope
from layerstep.expressions.seen_values import Results, SeenCalls
from layerstep.module_paths.models import Models
from layerstep.side_effects.guard import Evaluation
from layerstep.training_steps.backward_calls import BackwardCalls
from layerstep.training_steps.steps import Steps

__all__ = ["Run"]


class Run:
    """State that the parts of the engine share. It calls none of them."""

    def __init__(self, config: Config, fail: Callable[[Exception], None]) -> None:
        self.config = config
        self.models = Models()
        self.training = Steps(fail)
        self.backward_calls = BackwardCalls(fail)
        self.seen_calls = SeenCalls(config.keep_bytes)
        self.results = Results(config.keep_bytes)
        """What lines have answered: `$1`, `$2`, …"""
        self.recordings = Recordings(most_tensors=config.max_tracked_tensors, budget=config.track_bytes)
        self.is_attached = False
        """Do points and steps take effect?"""
        self.intent = stepper.GO
        """What ends the step that runs now."""
        self.pause: Pause | None = None
        """Where the run stands still, if it does."""
        self.scope = self.scope_at(None)
        """The names at the prompt."""
        self.followers: dict[int, weakref.ref[Follower]] = {}
        """By thread: who follows the outermost call that runs there."""
        self.passed_calls: dict[int, PassedCalls] = {}
        """By thread: the calls of that one, as far as they are counted."""
        self.restarts = 0
        """How often a forward has begun again. Whoever counts its calls begins anew then."""
        self.weight_edits = 0
        """How often an edit has written a weight, or was taken back from it."""
        self.evaluating_threads: set[int] = set()
        """The ids of the threads that are in an evaluation of ours."""

    def scope_at(self, frame: Frame | None) -> Scope:
        """The names at a place in the run."""
        return Scope(
            self.models,
            frame,
            kept=self.seen_calls,
            results=self.results,
            recordings=self.recordings,
            training=self.training,
        )

    @property
    def is_silent(self) -> bool:
        """Is this thread in an evaluation, so that nothing stops in it?"""
        return threading.get_ident() in self.evaluating_threads

    def evaluating(self) -> Evaluation:
        """Meanwhile taps in this thread stay silent: an expression that runs the model does not re-enter."""
        return Evaluation(self.evaluating_threads)
