"""Odd parts of random programs: they write their weights, swap modules, refuse questions, or have modes.

Every part takes and returns a tensor of [batch, tokens, WIDTH].
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["ODD_ALONE", "ODD_AROUND", "WIDTH"]

WIDTH = 8


class _Around(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class WritesWeights(_Around):
    """A clamp, or the momentum of a second encoder."""

    def forward(self, x: Tensor) -> Tensor:
        for parameter in self.inner.parameters():
            parameter.data.mul_(0.999)
        return self.inner(x)


class ReplacesPart(_Around):
    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        made = nn.Linear(WIDTH, WIDTH)
        self.made = made
        y = self.made(y)
        del self.made
        return y


class SwapsForward(_Around):
    def forward(self, x: Tensor) -> Tensor:
        forward = self.inner.forward
        self.inner.forward = lambda *args, **kwargs: forward(*args, **kwargs) * 0.5  # type: ignore[method-assign]
        try:
            return self.inner(x)
        finally:
            del self.inner.forward


class NoComparison(_Around):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    __hash__ = nn.Module.__hash__


class NoTruth(_Around):
    def __bool__(self) -> bool:
        raise RuntimeError("no truth")

    def __len__(self) -> int:
        raise RuntimeError("no length")


class OwnNames(_Around):
    """Its arguments have the names that a wrapper would give its own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(_Named(inner))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(module=x, args=1, kwargs=2, forward=3, fn=4)


class _Named(_Around):
    def forward(self, **given: Any) -> Tensor:
        return self.inner(given["module"])


class Rows(_Around):
    """Its part is a generator."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__(_Generator(inner))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(list(self.inner(x)))


class _Generator(_Around):
    def forward(self, x: Tensor) -> Iterator[Tensor]:  # type: ignore[override]
        for row in x.split(1):
            yield self.inner(row)


class Awaited(_Around):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__(_Coroutine(inner))

    def forward(self, x: Tensor) -> Tensor:
        return asyncio.run(self.inner(x))


class _Coroutine(_Around):
    async def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        await asyncio.sleep(0)
        return self.inner(x)


class SavedElsewhere(_Around):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: tensor.detach() * 1, lambda tensor: tensor
        ):
            return self.inner(x)


class OtherWeights(_Around):
    def forward(self, x: Tensor) -> Tensor:
        weights = {name: parameter * 0.9 for name, parameter in self.inner.named_parameters()}
        buffers = {name: buffer.clone() for name, buffer in self.inner.named_buffers()}
        return torch.func.functional_call(self.inner, {**weights, **buffers}, (x,))


class _Functions(TorchFunctionMode):
    count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


class _Kernels(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


class CountsFunctions(_Around):
    """Not those of compiled code, which runs eagerly at a point, nor those of TorchScript.

    A dispatch mode gets the kernels of a script from C++, and calls them as functions.
    """

    kind: Any = _Functions

    def forward(self, x: Tensor) -> Tensor:
        with self.kind() as mode:
            y = self.inner(x)
        made = [type(part).__name__ for part in self.inner.modules()]
        hidden = "OptimizedModule" in made or "RecursiveScriptModule" in made
        return y + (0 if hidden else mode.count * 1e-3)


class CountsKernels(CountsFunctions):
    """Not under autocast: it keeps weights that it has cast, and a forward that begins again casts none."""

    kind = _Kernels

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if torch.is_autocast_enabled("cpu") else super().forward(x)


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no str")


class RaisesNoText(_Around):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__(_RaisesInside(inner))

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.inner(x)
        except NoText:
            return x


class _RaisesInside(_Around):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 2:
            raise NoText
        return self.inner(x)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH, dtype=torch.cfloat)

    def forward(self, x: Tensor) -> Tensor:
        return torch.view_as_real(self.layer(torch.complex(x.float(), x.float()))).sum(-1)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.nested.as_nested_tensor(list(x))
        return x + torch.nested.to_padded_tensor(self.layer(rows), 0.0).mean()


class Copied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + copy.deepcopy(self.layer)(x).mean()


class Casts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer.double()(x.double()).float()
        self.layer.float()
        return y


class Reversible(torch.autograd.Function):
    """Runs its module again, and a backward pass, in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: nn.Module) -> Tensor:
        ctx.module = module
        ctx.is_cast = torch.is_autocast_enabled("cpu")
        ctx.save_for_backward(x)
        with torch.no_grad():
            return module(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None]:
        (x,) = ctx.saved_tensors
        with torch.enable_grad(), torch.autocast("cpu", torch.bfloat16, enabled=ctx.is_cast):
            again = x.detach().requires_grad_()
            y = ctx.module(again)
        torch.autograd.backward(y, gradient)
        return again.grad, None


class Reverses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        return Reversible.apply(x, self.inner)


ODD_AROUND: list[Callable[[nn.Module], nn.Module]] = [
    WritesWeights,
    ReplacesPart,
    SwapsForward,
    NoComparison,
    NoTruth,
    OwnNames,
    Rows,
    Awaited,
    SavedElsewhere,
    OtherWeights,
    CountsFunctions,
    CountsKernels,
    RaisesNoText,
]
"""These take any part."""

ODD_ALONE: list[Callable[[], nn.Module]] = [Complex, Nested, Copied, Casts, Reverses]
