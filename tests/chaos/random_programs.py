"""Random programs: a seed makes a model out of many kinds of parts, and a loop that runs it.

The same seed makes the same program, so a bare run and a debugged one can be compared bit by bit. Every part
takes and returns a tensor of [batch, tokens, WIDTH].
"""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import random
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from odd_parts import ODD_ALONE, ODD_AROUND, WIDTH
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

__all__ = ["Program", "program"]

BATCH = 2
TOKENS = 3


# -- parts that hold other parts -----------------------------------------------------------


class Around(nn.Module):
    """A part with another one inside."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


class Residual(Around):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class ResidualInPlace(Around):
    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x).clone()
        y += x
        return y


class Checkpointed(Around):
    reentrant = False

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return self.inner(x)
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


class CheckpointedReentrant(Checkpointed):
    reentrant = True


class Twice(Around):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(torch.tanh(self.inner(x)))


class Direct(Around):
    """Calls `.forward`, past all hooks."""

    def forward(self, x: Tensor) -> Tensor:
        return self.inner.forward(x)


class WithoutGrad(Around):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.inner(x)
        return x * 0.5 + y


class Inference(Around):
    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            y = self.inner(x.detach())
        return x + y.sum().item() * 1e-3


class Autocast(Around):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.inner(x)
        return y.float()


class Keywords(Around):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__(KeywordPart(inner))

    def forward(self, x: Tensor) -> Tensor:
        answer = self.inner(value=x, note="a note", scale=0.5)
        return answer["value"] + answer["parts"][1]


class KeywordPart(Around):
    def forward(self, *, value: Tensor, note: str, scale: float) -> dict[str, Any]:
        y = self.inner(value)
        return {"value": y, "parts": (None, y * scale), "note": note}


class Threaded(Around):
    """Runs its part in a thread of its own and waits for it."""

    def forward(self, x: Tensor) -> Tensor:
        out: list[Any] = []
        with_grad = torch.is_grad_enabled()

        def work() -> None:
            with torch.set_grad_enabled(with_grad):
                out.append(self.inner(x))

        thread = threading.Thread(target=work, name="part")
        thread.start()
        thread.join()
        return out[0] if out else x  # `quit` at a stop in the thread ends it before


class Hooked(Around):
    """A part with hooks of the user's that replace values."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner)
        nn.Module.register_forward_hook(inner, lambda module, args, output: output * 0.9)
        nn.Module.register_forward_pre_hook(inner, lambda module, args: (args[0] + 0.1,))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Raises(Around):
    """Raises at its second call and catches it in the model."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(RaisesInside(inner))

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.inner(x)
        except ValueError:
            return x


class RaisesInside(Around):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 2:
            raise ValueError("the second call \x1b[31mfails")
        return self.inner(x)


class Vmapped(Around):
    def forward(self, x: Tensor) -> Tensor:
        return torch.vmap(self.inner, randomness="different")(x)


class Sensitivity(Around):
    """Per-sample gradients through torch.func."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.func.vmap(torch.func.grad(lambda row: self.inner(row).square().sum()))(x)


class Tangent(Around):
    def forward(self, x: Tensor) -> Tensor:
        value, tangent = torch.func.jvp(self.inner, (x,), (torch.ones_like(x),))
        return value + tangent * 0.1


AROUND: list[type[Around]] = [
    Residual,
    ResidualInPlace,
    Checkpointed,
    CheckpointedReentrant,
    Twice,
    Direct,
    WithoutGrad,
    Inference,
    Autocast,
    Keywords,
    Threaded,
    Hooked,
    Raises,
]
"""These take any part."""

TRANSFORMS: list[type[Around]] = [Vmapped, Sensitivity, Tangent]
"""These take parts without in-place writes, buffers or kernels that torch.func cannot batch."""


# -- parts by themselves -------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)[:, None].chunk(3, -1)
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0]


class SelfAttention(nn.Module):
    def __init__(self, need_weights: bool) -> None:
        super().__init__()
        self.need_weights = need_weights
        self.mha = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.mha(x, x, x, need_weights=self.need_weights)[0]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x.transpose(1, 2)))).transpose(1, 2)


class Noise(nn.Module):
    """Draws from every random stream of the process."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x) * random.random() * float(np.random.rand())


class OwnNoise(nn.Module):
    """Draws from generators of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.torch = torch.Generator().manual_seed(3)
        self.numpy = np.random.default_rng(3)
        self.python = random.Random(3)

    def __deepcopy__(self, memo: dict[int, Any]) -> OwnNoise:  # torch cannot copy a Generator
        return OwnNoise()

    def __reduce__(self) -> Any:
        return OwnNoise, ()

    def forward(self, x: Tensor) -> Tensor:
        drawn = torch.rand(WIDTH, generator=self.torch)
        return x + drawn * 0.1 + float(self.numpy.random()) * self.python.random()


class Statistics(nn.Module):
    """Writes a buffer in place and replaces another."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean = 0.9 * self.mean + 0.1 * x.mean()
            self.scale.lerp_(x.abs().mean(), 0.1)
        return (x - self.mean) * self.scale.clone()


class Cache(nn.Module):
    """Keeps what it has seen, as a decoder does."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach())
        del self.seen[:-3]
        return self.proj(x) + torch.stack([past.mean() for past in self.seen]).mean()


class Halve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x / 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad / 2 + 0 * x


class OwnFunction(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Halve.apply(x)


class Spectrum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.ifft(torch.fft.fft(x, dim=1), dim=1).real


class NotANumber(nn.Module):
    """Makes a NaN that its own output does not show."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, x.log(), torch.zeros_like(x)).nan_to_num()


class Sparse(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x.relu().to_sparse()) + x

    def dense(self, x: Tensor) -> Tensor:
        return x.to_dense()


class Resizes(nn.Module):
    """Frees and refills its buffer's storage, as sharded training does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scratch", torch.zeros(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        storage = self.scratch.untyped_storage()
        storage.resize_(0)
        storage.resize_(self.scratch.nbytes)  # `grad check` runs it in float64
        self.scratch.zero_()
        return x + self.scratch.sum()


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.leaf = torch.jit.script(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()))

    def forward(self, x: Tensor) -> Tensor:
        with torch.jit.optimized_execution(False):  # otherwise its second run has other last digits
            return self.leaf(x)


def _compiled() -> nn.Module:
    return torch.compile(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()), backend="eager")


def _shared() -> nn.Module:
    layer = nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(layer, nn.GELU(), layer)


ALONE: list[Callable[[], nn.Module]] = [
    lambda: nn.Linear(WIDTH, WIDTH),
    lambda: nn.LayerNorm(WIDTH),
    nn.GELU,
    lambda: nn.ReLU(inplace=True),
    lambda: nn.Dropout(0.3),
    lambda: nn.Dropout(0.3, inplace=True),
    nn.Identity,
    lambda: nn.Softmax(-1),
    Attention,
    lambda: SelfAttention(False),
    lambda: SelfAttention(True),
    lambda: nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True),
    Recurrent,
    Convolution,
    Noise,
    OwnNoise,
    Statistics,
    Cache,
    OwnFunction,
    Spectrum,
    NotANumber,
    Sparse,
    Resizes,
    Scripted,
    _shared,
    lambda: parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
    lambda: parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
    lambda: nn.DataParallel(nn.Linear(WIDTH, WIDTH)),
]

SIMPLE: list[Callable[[], nn.Module]] = [
    lambda: nn.Linear(WIDTH, WIDTH),
    lambda: nn.LayerNorm(WIDTH),
    nn.GELU,
    nn.Tanh,
    lambda: nn.Softmax(-1),
    _shared,
    Spectrum,
]
"""What torch.func can transform."""


def _part(draw: random.Random, depth: int) -> nn.Module:
    kind = draw.random()
    if depth and kind < 0.25:
        around = ODD_AROUND if draw.random() < 0.4 else AROUND
        return draw.choice(around)(_part(draw, depth - 1))
    if depth and kind < 0.35:
        inner = nn.Sequential(*(draw.choice(SIMPLE)() for _ in range(draw.randint(1, 2))))
        return draw.choice(TRANSFORMS)(inner)
    if depth and kind < 0.5:
        return nn.Sequential(*(_part(draw, depth - 1) for _ in range(draw.randint(1, 3))))
    if kind > 0.98:
        return _compiled()
    return draw.choice(ODD_ALONE if draw.random() < 0.2 else ALONE)()


class Model(nn.Module):
    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(_part(draw, 2) for _ in range(draw.randint(1, 4)))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.clone())


# -- loops ---------------------------------------------------------------------------------


@dataclass
class Program:
    """One program of a seed: call `run` for the bits that came out."""

    seed: int
    model: nn.Module
    way: str
    notes: list[Any] = field(default_factory=list)

    def run(self) -> dict[str, Any]:
        """Run it, and keep every bit that a debugger might disturb."""
        seed_all(self.seed + 1)
        graded = list(self.model.named_parameters())
        try:
            LOOPS[self.way](self)
        except Exception as error:  # it fails by itself: then it fails in the same way when debugged
            self.notes.append(f"{type(error).__name__}: {error}")
            if self.way == "scaled":
                # Which gradients are there when a backward pass dies depends on the age of its nodes. After
                # `back`, weights that autocast has cast before are older.
                graded = []
        state = {
            "notes": self.notes,
            "parameters": {name: p.detach().clone() for name, p in self.model.named_parameters()},
            "buffers": {name: b.detach().clone() for name, b in self.model.named_buffers()},
            "gradients": {name: None if p.grad is None else p.grad.clone() for name, p in graded},
            "versions": {
                name: None if p.is_inference() else p._version for name, p in self.model.named_parameters()
            },
            "training": [m.training for m in self.model.modules()],
            "torch": torch.get_rng_state(),
            "random": random.getstate(),
            "numpy": tuple(np.asarray(part).tolist() for part in np.random.get_state()),
        }
        return state

    def batch(self) -> Tensor:
        return torch.randn(BATCH, TOKENS, WIDTH)

    def keep(self, value: Tensor) -> None:
        self.notes.append(value.detach().clone())


def _train(program: Program, optimizer: torch.optim.Optimizer, accumulate: int = 1) -> None:
    program.model.train()
    for _ in range(3):
        for _ in range(accumulate):
            out = program.model(program.batch())
            loss = out.square().mean() / accumulate
            if loss.requires_grad:
                loss.backward()
            program.keep(out)
        nn.utils.clip_grad_norm_(program.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def _sgd(program: Program) -> None:
    _train(program, torch.optim.SGD(program.model.parameters(), 0.1, momentum=0.9))


def _adam(program: Program) -> None:
    _train(program, torch.optim.AdamW(program.model.parameters(), 0.01), accumulate=2)


def _lbfgs(program: Program) -> None:
    optimizer = torch.optim.LBFGS(program.model.parameters(), max_iter=2)
    batch = program.batch()

    def closure() -> float:
        optimizer.zero_grad()
        loss = program.model(batch).square().mean()
        if loss.requires_grad:
            loss.backward()
        return float(loss)

    for _ in range(2):
        program.notes.append(optimizer.step(closure))  # type: ignore[arg-type]


def _evaluate(program: Program) -> None:
    program.model.eval()
    with torch.no_grad():
        for _ in range(3):
            program.keep(program.model(program.batch()))


def _infer(program: Program) -> None:
    program.model.eval()
    with torch.inference_mode():
        for _ in range(3):
            program.keep(program.model(program.batch()))


def _alternate(program: Program) -> None:
    for _ in range(2):
        _evaluate(program)
        program.model.train()
        out = program.model(program.batch())
        if out.requires_grad:
            out.sum().backward()
        program.keep(out)


def _save(program: Program) -> None:
    """Saves, copies and loads while it trains."""
    program.model.train()
    for _ in range(2):
        program.keep(program.model(program.batch()))
        file = io.BytesIO()
        torch.save(program.model.state_dict(), file)
        file.seek(0)
        program.model.load_state_dict(torch.load(file, weights_only=True))
        with contextlib.suppress(Exception):  # scripted and compiled parts, with or without a debugger
            twin = copy.deepcopy(program.model)
            program.keep(twin(program.batch()))
        with contextlib.suppress(Exception):
            twin = pickle.loads(pickle.dumps(program.model))
            program.keep(twin(program.batch()))


def _penalty(program: Program) -> None:
    """Gradients of gradients, where the parts allow it."""
    for _ in range(2):
        batch = program.batch().requires_grad_()
        out = program.model(batch)
        program.keep(out)
        try:
            (gradient,) = torch.autograd.grad(out.sum(), batch, create_graph=True)
            gradient.square().sum().backward()
        except RuntimeError as error:
            program.notes.append(type(error).__name__)


def _foreach(program: Program) -> None:
    _train(program, torch.optim.RMSprop(program.model.parameters(), 0.01, foreach=True))


def _scaled(program: Program) -> None:
    """Half precision with a scaled loss, and each batch twice, as sharpness-aware training has it."""
    optimizer = torch.optim.SGD(program.model.parameters(), 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=1)
    for _ in range(2):
        batch = program.batch()
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                out = program.model(batch)
            if out.requires_grad:
                scaler.scale(out.float().square().mean()).backward()
            program.keep(out)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


LOOPS: dict[str, Callable[[Program], None]] = {
    "sgd": _sgd,
    "adam": _adam,
    "lbfgs": _lbfgs,
    "evaluate": _evaluate,
    "infer": _infer,
    "alternate": _alternate,
    "save": _save,
    "penalty": _penalty,
    "foreach": _foreach,
    "scaled": _scaled,
}


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def program(seed: int) -> Program:
    """The program of a seed."""
    draw = random.Random(seed)
    seed_all(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = Model(draw)
    return Program(seed, model, draw.choice(sorted(LOOPS)))
