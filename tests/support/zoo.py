"""Small seeded models of many kinds, and a run of one with or without the debugger on it.

An entry builds the same model each time. `play` trains or evaluates it for two iterations and keeps every
bit that a debugger might disturb; `differences` compares two such runs.
"""

from __future__ import annotations

import contextlib
import copyreg
import io
import random
import signal
import sys
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from layerstep import DebugConsole
from layerstep.engine.messages import Message
from layerstep.render.screen import to_text
from layerstep.views import Notice

__all__ = [
    "ZOO",
    "Entry",
    "Run",
    "Seen",
    "calls_by_hooks",
    "console_on",
    "differences",
    "entry_named",
    "feeding",
    "global_state",
    "hook_count",
    "loop",
    "loss_of",
    "play",
    "seed",
    "taps_on",
]

MODES = ("train", "eval")
"""Both with a backward pass. `frozen` is eval under no_grad, `inference` under inference_mode."""

_GRADLESS = {"frozen": torch.no_grad, "inference": torch.inference_mode}


@dataclass(frozen=True)
class Entry:
    """A kind of model: how to build it, what to feed it, where one may stop in it."""

    name: str
    build: Callable[[], nn.Module]
    feed: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]
    inner: str
    """The path of a module that every forward calls through its hooks."""
    kind: str
    """A class that modules of it have."""
    modes: tuple[str, ...] = MODES
    fused: bool = False
    """It has layers that run as one kernel in eval mode without gradients."""
    lazy: bool = False
    """It has hooks of its own that go away with the first forward."""
    compiled: bool = False
    recomputes: bool = False
    """It runs parts again during backward."""

    @property
    def long(self) -> bool:
        """Tests over the zoo run on this model in `make test-long` only."""
        return self.name not in CORE

    def __str__(self) -> str:
        return self.name


ZOO: list[Entry] = []
CORE = {"mlp", "resnet", "encoder", "dict", "shared", "lazy", "streams", "checkpoint", "scripted", "compiled"}
"""One of each kind: plain, buffers and writes in place, fused, no bare tensors, one module under two names,
hooks of its own, random streams, recomputed, TorchScript, compiled."""

torch.set_num_threads(1)  # the workers of pytest-xdist share the processor


def entry_named(name: str) -> Entry:
    return next(entry for entry in ZOO if entry.name == name)


def entry(
    name: str, *, inner: str, kind: str, feed: Callable[[], Any] | None = None, **options: Any
) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    """Put a builder into the zoo; without `feed` its model takes four vectors of six."""

    def register(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        ZOO.append(Entry(name, build, feed or _vectors, inner, kind, **options))
        return build

    return register


def _vectors() -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randn(4, 6),), {}


def seed(number: int = 0) -> None:
    """Set every random stream of the process."""
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


# -- plain models ------------------------------------------------------------------------


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 8), nn.GELU())
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@entry("mlp", inner="body.0", kind="Linear", modes=(*MODES, "frozen", "inference"))
def mlp() -> nn.Module:
    return MLP()


class BasicBlock(nn.Module):
    """As in torchvision: batch norm, ReLU in place, a sum with the shortcut in place."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample = None
        if stride != 1 or width != out:
            self.downsample = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.layer1 = nn.Sequential(BasicBlock(4, 4, 1), BasicBlock(4, 4, 1))
        self.layer2 = nn.Sequential(BasicBlock(4, 6, 2))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.drop = nn.Dropout(0.3, inplace=True)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.stem(x)))
        return self.fc(self.drop(self.pool(x).flatten(1)))


@entry(
    "resnet",
    inner="layer1.0.relu",
    kind="BatchNorm2d",
    feed=lambda: ((torch.randn(2, 3, 8, 8),), {}),
    modes=(*MODES, "frozen", "inference"),
)
def resnet() -> nn.Module:
    return ResNet()


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 5, num_layers=2, dropout=0.3, bidirectional=True, batch_first=True)
        self.tag = nn.Linear(10, 4)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embed(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        out, _ = self.lstm(packed)
        return self.tag(nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0])


@entry(
    "lstm",
    inner="lstm",
    kind="RNNBase",
    feed=lambda: ((torch.randint(11, (3, 5)), torch.tensor([5, 2, 4])), {}),
)
def lstm() -> nn.Module:
    return Tagger()


@entry(
    "encoder",
    inner="layers.0.linear1",
    kind="LayerNorm",
    feed=lambda: (
        (torch.randn(2, 5, 8),),
        {"src_key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2])},
    ),
    modes=(*MODES, "frozen"),
    fused=True,
)
def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


@entry(
    "encoder_nested",
    inner="layers.0",
    kind="TransformerEncoderLayer",
    feed=lambda: (
        (torch.randn(2, 5, 8),),
        {"src_key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2])},
    ),
    modes=("frozen",),
    fused=True,
)
def encoder_nested() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says once that nested tensors are a prototype
        torch.nested.nested_tensor([torch.ones(1)])
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)


def _tokens() -> tuple[tuple[Any, ...], dict[str, Any]]:
    tokens = torch.randint(31, (2, 7))
    return (), {"input_ids": tokens, "labels": tokens}


@entry("gpt2", inner="h.1.attn", kind="GPT2Block", feed=_tokens, modes=(*MODES, "frozen"))
def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=31,
        n_positions=8,
        n_embd=8,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"
    return model


@entry(
    "bert",
    inner="layer.0.attention.self",
    kind="LayerNorm",
    feed=lambda: (
        (torch.randint(31, (2, 6)),),
        {"attention_mask": torch.tensor([[1] * 6, [1] * 4 + [0] * 2])},
    ),
)
def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=31, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    return BertModel(config)


# -- ins and outs ------------------------------------------------------------------------


class DictModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 4)
        self.b = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, batch: dict[str, Any]) -> dict[str, Any]:
        a, b = self.a(batch["a"]), self.b(batch["more"]["b"])
        return {"sum": self.norm(a + b), "parts": {"a": a, "b": b}, "note": "fine", "none": None}


@entry(
    "dict",
    inner="norm",
    kind="Linear",
    feed=lambda: (({"a": torch.randn(4, 6), "more": {"b": torch.randn(4, 3)}},), {}),
)
def dict_model() -> nn.Module:
    return DictModel()


@dataclass
class Answer:
    logits: Tensor
    hidden: list[Tensor]
    label: str = "answer"


class AnswerModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = MLP()
        self.out = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Answer:
        hidden = self.body(x)
        return Answer(self.out(hidden), [hidden])


@entry("dataclass", inner="body.head", kind="MLP")
def dataclass_model() -> nn.Module:
    return AnswerModel()


class OutputModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = MLP()

    def forward(self, x: Tensor) -> Any:
        from transformers.modeling_outputs import BaseModelOutput

        hidden = self.body(x)
        return BaseModelOutput(last_hidden_state=hidden, hidden_states=(x, hidden))


@entry("model_output", inner="body.body", kind="Sequential")
def model_output() -> nn.Module:
    return OutputModel()


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Linear(6, 6)
        self.part = KeywordPart()

    def forward(self, *, x: Tensor, mask: Tensor, training_note: str = "") -> Tensor:
        return self.part(value=self.scale(x), mask=mask)


class KeywordPart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.2)

    def forward(self, *, value: Tensor, mask: Tensor) -> Tensor:
        return self.drop(input=value.masked_fill(mask, 0.0))


@entry(
    "keywords",
    inner="part",
    kind="Dropout",
    feed=lambda: ((), {"x": torch.randn(4, 6), "mask": torch.rand(4, 6) > 0.7, "training_note": "n"}),
)
def keywords() -> nn.Module:
    return Keywords()


class Tuples(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.split = TwoOutputs()
        self.join = nn.Bilinear(3, 3, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        left, right = self.split(x)
        return self.join(left, right), (left, right)


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.fc(x).chunk(2, dim=1)


@entry("tuples", inner="split", kind="Bilinear")
def tuples() -> nn.Module:
    return Tuples()


class NotANumber(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.out = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.fc(x).log() / 0.0)


@entry("nan", inner="fc", kind="Linear")
def nan_model() -> nn.Module:
    return NotANumber()


# -- modules that are shared, repeated, nested -------------------------------------------


class Shared(nn.Module):
    """One module under two names, as tied layers are."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
        self.decode = self.encode
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.drop(self.encode(x)))


@entry("shared", inner="decode", kind="BatchNorm1d")
def shared() -> nn.Module:
    return Shared()


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.fc(torch.tanh(self.norm(self.fc(x)))))


@entry("twice", inner="fc", kind="LayerNorm")
def twice() -> nn.Module:
    return Twice()


class Recursive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor, depth: int = 3) -> Tensor:
        x = self.drop(self.fc(x))
        return self(x, depth - 1) if depth else x


@entry("recursive", inner="fc", kind="Recursive")
def recursive() -> nn.Module:
    return Recursive()


class Containers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.heads = nn.ModuleDict({"mean": nn.Linear(6, 1), "scale": nn.Sequential(nn.Linear(6, 1))})
        self.extra = nn.ParameterList([nn.Parameter(torch.ones(6))])

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        for layer in self.layers:
            x = torch.relu(layer(x)) * self.extra[0]
        return {name: head(x) for name, head in self.heads.items()}


@entry("containers", inner="layers.1", kind="Sequential")
def containers() -> nn.Module:
    return Containers()


class Direct(nn.Module):
    """Calls `.forward` of a child, past its hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = MLP()
        self.out = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.inner.forward(x))


@entry("direct", inner="inner.head", kind="Linear")
def direct() -> nn.Module:
    return Direct()


# -- weights that are not plain parameters -----------------------------------------------


@entry("lazy", inner="1", kind="Linear", lazy=True)
def lazy() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that lazy modules are new
        return nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.Dropout(0.5), nn.LazyLinear(2))


@entry("weight_norm", inner="0", kind="ParametrizedLinear")
def weight_norm() -> nn.Module:
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 6)), nn.ReLU(), nn.Linear(6, 2))


@entry("spectral_norm", inner="0", kind="ParametrizedLinear")
def spectral_norm() -> nn.Module:
    """Reading its weight in train mode writes its buffers."""
    return nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 6)), nn.ReLU(), nn.Linear(6, 2))


class Streams(nn.Module):
    """Draws from every random stream while it runs: stochastic depth, mixing, noise."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.noise = Noise()

    def forward(self, x: Tensor) -> Tensor:
        if random.random() < 0.7:
            x = self.fc(x)
        return self.noise(self.fc(x)) * float(np.random.rand())


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x) * random.gauss(0, 1)


@entry("streams", inner="noise", kind="Noise")
def streams() -> nn.Module:
    return Streams()


class Tracked(nn.Module):
    """Statistics in buffers: one replaced, one written in place and saved for backward, one made late."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("seen", None)
        self.fc = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
            self.scale.lerp_(x.detach().abs().mean(), 0.1)
            self.seen = torch.zeros(()) if self.seen is None else self.seen + 1
        return self.fc((x - self.mean) * self.scale)


class Statistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.track = Tracked()
        self.out = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.track(x * x))


@entry("statistics", inner="track", kind="Tracked")
def statistics() -> nn.Module:
    return Statistics()


# -- ways of running ---------------------------------------------------------------------


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.use_reentrant = use_reentrant
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Dropout(0.3)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        return x


@entry("checkpoint", inner="blocks.0.0", kind="Linear", recomputes=True)
def checkpointed() -> nn.Module:
    return Checkpointed(use_reentrant=False)


@entry("checkpoint_reentrant", inner="blocks.1.1", kind="GELU", recomputes=True)
def checkpointed_reentrant() -> nn.Module:
    return Checkpointed(use_reentrant=True)


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(6, 6)
        self.leaf = torch.jit.script(nn.Sequential(nn.Linear(6, 6), nn.Tanh()))
        self.after = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.jit.optimized_execution(False):  # otherwise its second run has other last digits
            return self.after(self.leaf(self.before(x)))


@entry("scripted", inner="leaf", kind="Linear")
def scripted() -> nn.Module:
    return Scripted()


@entry("compiled", inner="body.0", kind="Linear", compiled=True)
def compiled() -> nn.Module:
    return torch.compile(MLP(), backend="eager")


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wrapped = nn.DataParallel(MLP())
        self.out = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.wrapped(x))


@entry("data_parallel", inner="wrapped.body.3", kind="Linear")
def data_parallel() -> nn.Module:
    return nn.DataParallel(Wrapped())


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = MLP()

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.body(x) + self.body(x * 0.5)


@entry("autocast", inner="body.head", kind="Linear")
def autocast() -> nn.Module:
    return Autocast()


class OwnHooks(nn.Module):
    """A model with hooks of the user's, which replace values forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.body = MLP()
        self.body.head.register_forward_hook(halve)
        self.body.body[0].register_forward_pre_hook(shift, with_kwargs=True)
        self.body.register_full_backward_hook(double_gradient)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def halve(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output / 2


def shift(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return (args[0] + 1,), kwargs


def double_gradient(module: nn.Module, grad_input: Any, grad_output: Any) -> Any:
    return tuple(None if grad is None else grad * 2 for grad in grad_input)


@entry("own_hooks", inner="body.head", kind="MLP")
def own_hooks() -> nn.Module:
    return OwnHooks()


class Functional(nn.Module):
    """Per-sample gradients of a part of itself, through `torch.func`."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.out = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        weights = dict(self.part.named_parameters())

        def energy(parameters: Any, row: Tensor) -> Tensor:
            return torch.func.functional_call(self.part, parameters, (row,)).square().sum()

        gradients = torch.func.vmap(torch.func.grad(energy), in_dims=(None, 0))(weights, x)
        return self.out(self.part(x)) + gradients["0.bias"].mean()


@entry("functional", inner="part.1", kind="Linear")
def functional_model() -> nn.Module:
    return Functional()


@entry("graph_module", inner="body.0", kind="Linear")
def graph_module() -> nn.Module:
    return torch.fx.symbolic_trace(MLP())


# -- running -----------------------------------------------------------------------------


@dataclass
class Seen:
    """What a session showed."""

    stops: list[tuple[str, int]] = field(default_factory=list)
    """The path of each stop and the number of its module."""
    bugs: list[str] = field(default_factory=list)
    """What the debugger says of its own mistakes."""
    verdicts: list[str] = field(default_factory=list)
    """The answers to `perturbed?`."""
    output: io.StringIO = field(default_factory=io.StringIO)

    @property
    def text(self) -> str:
        return self.output.getvalue()

    @property
    def is_perturbed(self) -> bool:
        return any(verdict.strip().lstrip("!✗✓· ").startswith("yes") for verdict in self.verdicts)

    def watch(self, console: DebugConsole) -> None:
        numbers = {id(module): number for number, module in enumerate(console.model.modules())}
        session = weakref.ref(console.session)

        def hear(message: Message) -> None:
            here = session()
            pause = here.run.pause if here is not None else None
            if message.kind == "stop" and pause is not None and pause.stack:
                frame = pause.stack[0]
                self.stops.append((frame.path, numbers.get(id(frame.module), -1)))
            if isinstance(message.view, Notice) and message.view.text.startswith("a bug in layerstep"):
                self.bugs.append(message.view.text)
            if message.line == "perturbed?":
                self.verdicts.append(to_text(message.view))

        console.session.listen(hear)


@dataclass
class Run:
    """Everything of a run that must stay as it is, bit by bit."""

    state: dict[str, Any]
    model: nn.Module
    seen: Seen


def console_on(model: nn.Module, commands: Iterable[str], **options: Any) -> tuple[DebugConsole, Seen]:
    """A console that takes these lines, and what it shows."""
    seen = Seen()
    console = DebugConsole(model, commands=list(commands), output=seen.output, **options)
    seen.watch(console)
    return console, seen


def play(
    kind: Entry,
    mode: str,
    commands: Iterable[str] | None = None,
    *,
    iterations: int = 2,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
) -> Run:
    """Build, train or evaluate, and keep what came out; with commands, under the debugger."""
    seed(0)
    model = kind.build()
    seed(1)
    if commands is None:
        return Run(loop(kind, model, mode, iterations, optimizer), model, Seen())
    console, seen = console_on(model, commands)
    with console:
        state = loop(kind, model, mode, iterations, optimizer)
    return Run(state, model, seen)


def loop(
    kind: Entry,
    model: nn.Module,
    mode: str,
    iterations: int = 2,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
) -> dict[str, Any]:
    """A training loop, or an evaluation; then the state of everything."""
    steps: torch.optim.Optimizer | None = None
    model.train(mode == "train")
    state: dict[str, Any] = {}
    for iteration in range(iterations):
        with feeding(kind, mode) as (args, kwargs):
            output = model(*args, **kwargs)
            state[f"output {iteration}"] = [leaf.detach().clone() for leaf in tensors_of(output)]
        if mode not in _GRADLESS:
            loss_of(output).backward()
            state[f"gradients {iteration}"] = _gradients(model, list(tensors_of((args, kwargs))))
        if mode == "train" and optimizer is not None:
            steps = steps or optimizer(model.parameters())
            steps.step()
            steps.zero_grad()
        elif mode == "train":
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter -= 0.01 * parameter.grad
    state["parameters"] = {name: parameter.detach() for name, parameter in model.named_parameters()}
    state["buffers"] = dict(model.named_buffers())
    state["versions"] = {name: tensor._version for name, tensor in model.named_parameters()}
    state["random streams"] = random_streams()
    return state


def loss_of(output: Any) -> Tensor:
    """A number that every tensor of an output has a part in."""
    leaves = [leaf for leaf in tensors_of(output) if leaf.requires_grad]
    return torch.stack([leaf.float().square().mean() + leaf.float().sum() * 0.1 for leaf in leaves]).sum()


def _gradients(model: nn.Module, inputs: list[Tensor]) -> dict[str, Any]:
    named = {name: parameter.grad for name, parameter in model.named_parameters()}
    named.update({f"input {number}": leaf.grad for number, leaf in enumerate(inputs)})
    return {name: None if grad is None else grad.clone() for name, grad in named.items()}


def tensors_of(value: Any) -> Iterator[Tensor]:
    """The tensors in any nest of containers, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_of(item)
    elif is_dataclass(value):
        for item in fields(value):
            yield from tensors_of(getattr(value, item.name))


def random_streams() -> dict[str, Any]:
    name, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "random": random.getstate(),
        "numpy": (name, keys.tobytes(), position, has_gauss, cached),
    }


# -- comparing ---------------------------------------------------------------------------


def differences(one: Any, other: Any, place: str = "", *, last_digits: bool = False) -> list[str]:
    """The places where two states are not the same bit by bit; `last_digits` may differ if told so."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        same = _is_close if last_digits and place.startswith("/output") else _same_bits
        return [] if same(one, other) else [place]
    if type(one) is not type(other):
        return [f"{place}: {type(one).__name__} and {type(other).__name__}"]
    if isinstance(one, list):
        one, other = dict(enumerate(one)), dict(enumerate(other))
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return [f"{place}: {sorted(one.keys() ^ other.keys())} in one only"]
        parts = (differences(one[k], other[k], f"{place}/{k}", last_digits=last_digits) for k in one)
        return [found for part in parts for found in part]
    return [] if one == other else [f"{place}: {one!r:.60} and {other!r:.60}"]


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape or one.requires_grad != other.requires_grad:
        return False
    raw = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return torch.equal(*raw)


def _is_close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-5, atol=1e-6)


# -- what a debugger may leave behind ----------------------------------------------------

_HOOK_DICTS = tuple(name for name in nn.Module().__dict__ if "hooks" in name and "state_dict" not in name)
_GLOBAL_DICTS = tuple(
    name for name in vars(torch_module) if name.startswith("_global_") and name.endswith("hooks")
)


def hook_count(model: nn.Module) -> int:
    """The hooks of every kind on every module, wrappers and scripted ones included."""
    return sum(len(module.__dict__.get(name, ())) for module in model.modules() for name in _HOOK_DICTS)


def taps_on(model: nn.Module) -> list[Any]:
    """The hooks, and the stand-ins for a forward, that are the debugger's and report to it."""
    hooks = [
        hook
        for module in model.modules()
        for name in _HOOK_DICTS
        if isinstance(found := module.__dict__.get(name), dict)
        for hook in found.values()
    ]
    hooks += [module.__dict__["forward"] for module in model.modules() if "forward" in module.__dict__]
    return [hook for hook in hooks if (_home_of(hook) or "").startswith("layerstep")]


def _home_of(hook: Any) -> str | None:
    return getattr(hook, "__module__", None) or type(hook).__module__


_WITH_KERNELS: list[Any] = [nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder]


def global_state() -> dict[str, Any]:
    """What of the process, torch and Python a debugger may have replaced."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return {
        "Module.__call__": nn.Module.__call__,
        "Module._call_impl": nn.Module._call_impl,
        "reducer": copyreg.dispatch_table.get(OrderedDict),
        "forwards": [kind.forward for kind in _WITH_KERNELS],
        "TorchScript": torch.jit._recursive.create_script_module,
        "Module.__setattr__": nn.Module.__setattr__,
        "global hooks": {name: dict(getattr(torch_module, name)) for name in _GLOBAL_DICTS},
        "SIGINT": signal.getsignal(signal.SIGINT),
        "stance": dynamo._stance.stance if dynamo is not None else "default",
        "stdout": sys.stdout,
        "trace": (sys.gettrace(), sys.getprofile()),
        "excepthook": sys.excepthook,
        "displayhook": sys.displayhook,
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "modes": torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack(),
        "anomaly": torch.is_anomaly_enabled(),
    }


def calls_by_hooks(kind: Entry, mode: str) -> list[int]:
    """The numbers of the modules in the order in which one bare forward leaves them."""
    seed(0)
    model = kind.build()
    calls: list[int] = []
    for number, module in enumerate(model.modules()):

        def note(module: nn.Module, args: Any, output: Any, number: int = number) -> None:
            calls.append(number)

        nn.Module.register_forward_hook(module, note)
    model.train(mode == "train")
    seed(1)
    with feeding(kind, mode) as (args, kwargs):
        getattr(model, "_orig_mod", model)(*args, **kwargs)  # compiled, it would trace the hooks
    return calls


@contextlib.contextmanager
def feeding(kind: Entry, mode: str) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """What a model takes, in the grad mode that a mode means."""
    args, kwargs = kind.feed()
    has_grad = mode not in _GRADLESS
    with contextlib.nullcontext() if has_grad else _GRADLESS[mode]():
        for leaf in tensors_of((args, kwargs)):
            if leaf.is_floating_point():
                leaf.requires_grad_(has_grad)
        yield args, kwargs
