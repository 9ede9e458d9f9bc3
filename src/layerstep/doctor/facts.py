"""What the doctor has seen, as plain numbers and names. Rules read these and touch no tensor.

A step that is *looked at* has everything; the others have what costs a few microseconds: the loss, the
learning rate, the calls. How many steps are looked at depends on the budget of the level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from layerstep.doctor.finding import Place
from layerstep.doctor.loss_facts import CriterionFacts, LossFacts, OutlierFacts, TargetFacts

__all__ = [
    "ActivationFacts",
    "CallFacts",
    "CriterionFacts",
    "EvaluationFacts",
    "ForwardFacts",
    "GroupFacts",
    "InputFacts",
    "LossFacts",
    "OutlierFacts",
    "ParameterFacts",
    "ParameterLook",
    "SchedulerFacts",
    "StepFacts",
    "TargetFacts",
]


@dataclass(frozen=True, slots=True)
class ParameterFacts:
    """A parameter of a model, as it was when the training began."""

    name: str
    module: str
    """The path of the module that owns it."""
    kind: str
    """The class of that module: `Linear`."""
    leaf: str
    """Its name in that module: `weight`."""
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool
    optimizers: tuple[int, ...]
    """The numbers of the optimizers that have it."""
    mean: float
    std: float
    checksum: int
    """The same for two parameters with equal bits."""
    model: str = ""
    before_norm: bool = False
    """A bias whose effect the norm after it takes away: its gradient is zero by construction."""
    memory: int = 0
    """The same for two parameters that lie in the same memory."""
    turned: int = 0
    """The checksum of its transpose, if it is a matrix of moderate size."""

    @property
    def is_matrix(self) -> bool:
        return len(self.shape) >= 2


@dataclass(frozen=True, slots=True)
class ParameterLook:
    """A parameter in one step that was looked at."""

    has_gradient: bool
    norm: float = 0.0
    """Of its gradient, as the optimizer got it. NaN if it is not finite."""
    mean: float = 0.0
    most: float = 0.0
    weight_norm: float = 0.0
    update: float = 0.0
    """The norm of its change divided by its own norm; NaN where its norm is zero."""
    moved: float = 1.0
    """The share of its elements (of a sample, if it is large) that the step has changed."""
    rows_alike: bool = False
    """Are all its rows equal, so that its units compute the same?"""
    columns_alike: bool = False
    """Are all its columns equal? They are the units of a matrix that an input is multiplied with."""
    is_finite: bool = True
    """The parameter itself, after the step."""
    stuck: float = 0.0
    """Of half precision: the share of its elements with a gradient that have the value of the beginning."""


@dataclass(frozen=True, slots=True)
class InputFacts:
    """A tensor that a model was called with."""

    name: str
    """`input 0`, or the keyword."""
    dtype: str
    shape: tuple[int, ...]
    mean: float = 0.0
    std: float = 0.0
    low: float = 0.0
    high: float = 0.0
    nonfinite: int = 0

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith(("f", "bf"))


@dataclass(frozen=True, slots=True)
class ForwardFacts:
    """One call of a model."""

    model: str
    samples: int
    is_training: bool
    """`model.training`."""
    with_grad: bool
    modes: tuple[str, ...] = ()
    """The paths of its dropouts and batch norms that are in evaluation mode although the model trains."""
    has_modes: bool = False
    """Does it contain a dropout or a batch norm, so that the mode matters?"""
    inputs: tuple[InputFacts, ...] = ()
    output: InputFacts | None = None
    autocast: str = ""
    """The dtype of autocast, if it is on."""
    is_own: bool = True
    """Does the optimizer of the step have parameters of this model?"""
    is_same_input: bool = False
    """Was it called with the very tensor of its call before?"""
    rows: tuple[int, ...] = ()
    """A checksum of each of the first samples, of a call that was looked at."""
    values: int = 0
    """Numbers that each of them has."""


@dataclass(frozen=True, slots=True)
class ActivationFacts:
    """What came out of one module in a step that was looked at."""

    path: str
    kind: str
    samples: int
    mean: float
    std: float
    size: float
    """The mean magnitude."""
    units: int
    silent: int
    """Units that gave zero or less for all samples of this step."""
    dead: int
    """Units that did so in all samples since the beginning."""
    seen: int
    """Samples since the beginning."""
    saturated: float = 0.0
    """Of a tanh or sigmoid: the share of outputs at the flat ends."""
    nonfinite: int = 0
    given: float = 0.0
    """Of a linear, convolutional or recurrent layer: the root of the mean square of its input."""
    layer: str = ""
    """Of rectified units: the layer before that has as many outputs."""


@dataclass(frozen=True, slots=True)
class CallFacts:
    """One call of a module without children, in a step that was looked at: does a gradient pass?"""

    path: str
    with_grad: bool
    """False under `torch.no_grad()`."""
    takes: bool
    """Does one of its inputs require a gradient?"""
    gives: bool
    """Does its output require one?"""
    cut_from: str = ""
    """The module whose output it gets without the graph: `detach()` lies between them."""
    is_fed: bool = False
    """Is it given an input of the model itself?"""


@dataclass(frozen=True, slots=True)
class SchedulerFacts:
    """A learning-rate scheduler."""

    kind: str
    optimizer: int
    steps: int
    """Since the training began."""
    was_early: bool = False
    """Did it step before its optimizer did?"""
    is_part: bool = False
    """Does another scheduler step it?"""
    is_gone: bool = False
    """The program has let it go; it may have stepped once more before."""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A parameter group of an optimizer."""

    lr: float
    """NaN if the optimizer has none."""
    weight_decay: float
    parameters: tuple[str, ...]
    initial_lr: float | None = None
    maximize: bool = False
    """Does the optimizer make the loss large?"""


@dataclass(frozen=True, slots=True)
class EvaluationFacts:
    """Calls of a trained model without gradients, between two training steps."""

    model: str
    step: int
    """The training step after which it came."""
    forwards: int
    samples: int
    is_training: bool
    """Was the model in training mode in any of them?"""
    has_modes: bool
    rows: tuple[int, ...] = ()
    loss: float | None = None
    """The mean loss, where it could be seen."""
    line: Place = field(default_factory=Place)
    """The line that called the model."""
    overlap: tuple[int, int] | None = None
    """How many rows of its dataset are trained on, and how many it has, where loaders tell."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """One step of one optimizer."""

    number: int
    """Counted from 1 for each optimizer."""
    training_step: int
    """Counted from 1 for the run: what findings name."""
    optimizer: int
    kind: str
    """The class of the optimizer: `AdamW`."""
    groups: tuple[GroupFacts, ...]
    losses: tuple[LossFacts, ...]
    forwards: tuple[ForwardFacts, ...]
    seconds: float
    is_looked_at: bool = False
    grad_norm: float | None = None
    """The norm of all gradients of the optimizer together."""
    parameters: Mapping[str, ParameterLook] = field(default_factory=dict)
    activations: tuple[ActivationFacts, ...] = ()
    kept_gradients: tuple[str, ...] = ()
    """Parameters whose gradient was not cleared since the step before, of the few that are asked."""
    untouched: tuple[str, ...] = ()
    """Parameters of a model that no optimizer has written since the training began, though they have a
    gradient."""
    scaler: float | None = None
    """The scale of an enabled gradient scaler."""
    orphans: tuple[str, ...] = ()
    """Parameters of models that have a gradient and are in no optimizer."""
    loose: tuple[str, ...] = ()
    """Parameters that the loss depends on and that no model has registered, by the attribute that holds
    them."""
    strangers: tuple[str, ...] = ()
    """Parameters of this optimizer that no called model has and that have no gradient."""
    backward_norm: float | None = None
    """The norm of the gradients as `backward()` left them, before something clipped or scaled them."""
    emptied: bool = False
    """`backward()` made gradients, and they were gone when the optimizer stepped."""
    calls: tuple[CallFacts, ...] = ()
    live_graphs: int | None = None
    """How many graphs of the last steps were alive after the step."""
    held_by: tuple[str, str, int] | None = None
    """What holds them, and the file and line that makes it grow; known once they are many."""
    bad_gradients: tuple[str, ...] = ()
    """Parameters whose gradient is not finite, in the order of the model; one is asked in each step, and all
    where it is bad."""
    bad_at: Place | None = None
    """Of bad gradients of a finite loss: where they began, if a second run has found it."""
    bad_words: str = ""
    layer_inputs: tuple[InputFacts, ...] = ()
    """What layers got that are fed with data; named by the path of the layer."""
    lost_passes: int = 0
    """Backward passes before the step whose gradients were cleared before the next pass."""
    is_shared: bool = False
    """Its losses and calls are those that another optimizer has stepped on right before it."""
    unseen: int = 0
    """Steps of this optimizer right before this one that the doctor did not watch. A rule that compares a
    step with the one before it must ask."""

    @property
    def loss(self) -> float | None:
        """The mean over the backward passes of the step, with the scale taken out."""
        if not self.losses:
            return None
        return sum(each.value / each.scale for each in self.losses) / len(self.losses)

    @property
    def lr(self) -> float:
        """The largest learning rate of its groups."""
        return max((group.lr for group in self.groups if not math.isnan(group.lr)), default=math.nan)

    @property
    def is_climbing(self) -> bool:
        """Does the optimizer make the loss large?"""
        return any(group.maximize for group in self.groups)

    @property
    def samples(self) -> int:
        return sum(forward.samples for forward in self.forwards if forward.with_grad)
