"""Planted NaNs and Infs, each with the line that makes it marked `# born`; what follows only hands it on."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

__all__ = ["CASES", "Case"]


@dataclass(frozen=True)
class Case:
    """A model, and what the hunt must say of it."""

    make: Callable[[], Any]
    op: str
    """A part of the operation's name, or of its kernel or autograd node."""
    part: str = "forward"
    path: str | None = None
    """The path of the module, if it is one."""
    source: str = ""
    steps: int = 1

    @property
    def name(self) -> str:
        return self.make.__name__

    @property
    def line(self) -> int:
        """The line that is marked; 0 if there is none to find."""
        return _marked_line(self.make)


@functools.cache  # `inspect` parses this whole file each time: 40 ms
def _marked_line(make: Callable[[], Any]) -> int:
    lines, first = inspect.getsourcelines(make)
    return next((first + n for n, text in enumerate(lines) if "# born" in text), 0)


CASES: list[Case] = []


def case(op: str, **more: Any) -> Callable[[type], type]:
    def register(kind: type) -> type:
        CASES.append(Case(kind, op, **more))
        return kind

    return register


class Net(nn.Module):
    """Two layers; `middle` is what each case overrides. The first output is 0 in one place."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 2)
        with torch.no_grad():
            self.first.weight[1] = 0
            self.first.bias[1] = 0

    def middle(self, h: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)))

    def data(self, step: int) -> Tensor:
        torch.manual_seed(step)
        return torch.randn(3, 4)

    def loss(self, out: Any) -> Tensor:
        return out.square().mean()


# --- in the forward ---


@case("log")
class LogOfZero(Net):
    def middle(self, h: Tensor) -> Tensor:
        return h.abs().log()  # born


@case("log")
class LogOfNegative(Net):
    def middle(self, h: Tensor) -> Tensor:
        return torch.log(h - 10)  # born


@case("div")
class ZeroByZero(Net):
    def middle(self, h: Tensor) -> Tensor:
        scale = h.abs().sum(0, keepdim=True)
        return h / scale  # born


@case("div")
class OneByZero(Net):
    def middle(self, h: Tensor) -> Tensor:
        return 1 / h  # born


@case("sqrt")
class SqrtOfNegative(Net):
    def middle(self, h: Tensor) -> Tensor:
        return (h - 5).sqrt()  # born


@case("rsqrt")
class RsqrtOfZero(Net):
    def middle(self, h: Tensor) -> Tensor:
        return torch.rsqrt(h.abs())  # born


@case("exp")
class ExpOverflow(Net):
    def middle(self, h: Tensor) -> Tensor:
        return (h * 1000 + 100).exp()  # born


@case("exp")
class HandMadeLogSumExp(Net):
    def middle(self, h: Tensor) -> Tensor:
        total = torch.exp(h + 200).sum(-1, keepdim=True)  # born
        return h - total.log()


@case("softmax")
class SoftmaxOverNothing(Net):
    def middle(self, h: Tensor) -> Tensor:
        mask = torch.zeros(3, 4, dtype=torch.bool)
        mask[1] = True
        scores = h.masked_fill(mask, float("-inf"))
        return scores.softmax(-1)  # born


@case("mm")
class HalfMatmulOverflow(Net):
    def middle(self, h: Tensor) -> Tensor:
        big = (h.abs() + 300).half()
        return (big @ big.T @ big).float()  # born


@case("_to_copy")
class HalfCastOverflow(Net):
    def middle(self, h: Tensor) -> Tensor:
        return (h.abs() * 1e6 + 1e6).half().float()  # born


@case("sum")
class HalfSumOverflow(Net):
    def middle(self, h: Tensor) -> Tensor:
        return h + (h.half().abs() + 3e4).sum()  # born


@case("var", path="norm")
class BatchNormOfOneSample(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm = self.OwnBatchNorm()

    class OwnBatchNorm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            spread = x.var(0)  # born
            return (x - x.mean(0)) / (spread + 1e-5).sqrt()

    def middle(self, h: Tensor) -> Tensor:
        return self.norm(h)

    def data(self, step: int) -> Tensor:
        return torch.ones(1, 4)


@case("std")
class SpreadOfOneElement(Net):
    def middle(self, h: Tensor) -> Tensor:
        return h / h[:, :1].std(-1, keepdim=True)  # born


@case("acos")
class AcosOutside(Net):
    def middle(self, h: Tensor) -> Tensor:
        return torch.acos(h + 1.5)  # born


@case("atanh")
class AtanhOfOne(Net):
    def middle(self, h: Tensor) -> Tensor:
        return torch.atanh((h * 100).tanh().sign())  # born


@case("div")
class MaskedCount(Net):
    def middle(self, h: Tensor) -> Tensor:
        keep = torch.zeros(3, 4)
        keep[0] = 1
        mean = (h * keep).sum(-1) / keep.sum(-1)  # born
        return h - mean[:, None]


@case("sub")
class InfMinusInf(Net):
    def middle(self, h: Tensor) -> Tensor:
        top = torch.full_like(h, math.inf)
        return h + (top - top)  # born


@case("mul")
class ProductOverflow(Net):
    def middle(self, h: Tensor) -> Tensor:
        big = (h.abs() + 1) * 1e30
        return big * big  # born


@case("mul")
class InfTimesZero(Net):
    def middle(self, h: Tensor) -> Tensor:
        mask = torch.full_like(h, -math.inf).triu(1)
        return h + mask * 0  # born


@case("pow")
class NegativeToAHalf(Net):
    def middle(self, h: Tensor) -> Tensor:
        return (h - 5) ** 0.5  # born


@case("sqrt")
class RoundedVariance(Net):
    def middle(self, h: Tensor) -> Tensor:
        x = h * 1e-3 + 1e4
        spread = (x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2 - 20
        return h / spread.sqrt()  # born


@case("mean")
class MeanOfNothing(Net):
    def middle(self, h: Tensor) -> Tensor:
        return h + h[h > 1e9].mean()  # born


@case("div_")
class InPlace(Net):
    def middle(self, h: Tensor) -> Tensor:
        y = h.clone()
        y.div_(h)  # born
        y.add_(1)
        return y


@case("log")
class ThroughAView(Net):
    def middle(self, h: Tensor) -> Tensor:
        y = h.clone()
        y[:, 1:2].copy_(h[:, 1:2].log())  # born
        return y


@case("empty")
class NeverWritten(Net):
    def middle(self, h: Tensor) -> Tensor:
        memory = torch.full((3, 4), math.nan)  # born: stands for what `empty` may find
        return h + memory


CASES[-1] = Case(NeverWritten, "full")


@case("linear", source="the input", path="first")
class NanInTheInput(Net):
    def data(self, step: int) -> Tensor:
        x = super().data(step)
        x[1, 2] = math.nan
        return x

    def middle(self, h: Tensor) -> Tensor:
        return h.relu()


@case("linear", source="parameter last.weight", path="last")
class NanParameter(Net):
    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.last.weight[0, 3] = math.nan

    def middle(self, h: Tensor) -> Tensor:
        return h.relu()


@case("add", source="buffer shift")
class NanBuffer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.tensor([0.0, math.nan, 0.0, 0.0]))

    def middle(self, h: Tensor) -> Tensor:
        return h + self.shift  # born


@case("log", steps=35)
class OnlyFromStepThirty(Net):
    def data(self, step: int) -> Tensor:
        return super().data(step) * (0 if step == 30 else 1)

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        norm = x.norm().log()  # born
        return self.last(self.drop(self.first(x))) + norm


@case("log", path="block")
class InsideCheckpoint(Net):
    class Block(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return h.tanh().abs().log()  # born

    def __init__(self) -> None:
        super().__init__()
        self.block = self.Block()

    def middle(self, h: Tensor) -> Tensor:
        return checkpoint(self.block, h, use_reentrant=False)


@case("log", path="block")
class InsideReentrantCheckpoint(InsideCheckpoint):
    class Block(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return h.tanh().abs().log()  # born

    def middle(self, h: Tensor) -> Tensor:
        return checkpoint(self.block, h, use_reentrant=True)


@case("reciprocal", path="one|two")
class InsideASharedModule(Net):
    class Inverse(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return h.reciprocal()  # born

    def __init__(self) -> None:
        super().__init__()
        self.one = self.two = self.Inverse()

    def middle(self, h: Tensor) -> Tensor:
        return self.two(self.one(h + 10) * 0)


@case("softmax", path="attention")
class AttentionWithDropout(Net):
    class Attention(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            scores = h @ h.T
            scores = F.dropout(scores, 0.2)
            hidden = torch.ones(3, 3, dtype=torch.bool).triu(0)
            weights = F.softmax(scores.masked_fill(hidden, -math.inf), -1)  # born
            return F.dropout(weights, 0.2) @ h

    def __init__(self) -> None:
        super().__init__()
        self.attention = self.Attention()

    def middle(self, h: Tensor) -> Tensor:
        return self.attention(h)


@case("multi_head_attention", path="attention")
class TorchAttentionAllMasked(Net):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def middle(self, h: Tensor) -> Tensor:
        padding = torch.ones(1, 3, dtype=torch.bool)
        return self.attention(h[None], h[None], h[None], key_padding_mask=padding)[0][0]  # born


@case("log")
class InACustomFunction(Net):
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, h: Tensor) -> Tensor:
            return h.abs().log()  # born

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            return grad

    def middle(self, h: Tensor) -> Tensor:
        return self.Own.apply(h)


@case("lstm", source="parameter lstm.weight_hh_l0", path="lstm")
class InsideAnLstm(Net):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, batch_first=True)
        with torch.no_grad():
            self.lstm.weight_hh_l0[0, 0] = math.nan

    def middle(self, h: Tensor) -> Tensor:
        return self.lstm(h[None])[0][0]  # born


@case("log")
class OnlyOneOfTwoIsUsed(Net):
    """A bad value that is thrown away is not the cause of another."""

    def middle(self, h: Tensor) -> Tensor:
        torch.where(h > 0, h, h.abs().log().exp())
        return h.abs().log()  # born


@case("div")
class InADictionary(Net):
    def forward(self, x: Tensor) -> Any:  # type: ignore[override]
        h = self.first(x)
        return {"logits": self.last(h), "extra": [h / h]}  # born

    def loss(self, out: Any) -> Tensor:
        return out["logits"].mean()


@case("cumprod")
class RunningProduct(Net):
    def middle(self, h: Tensor) -> Tensor:
        return h + (torch.ones(3, 4) * 1e20).cumprod(-1)  # born


@case("norm")
class UnderAutocast(Net):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            h = self.first(x)
            h = F.layer_norm(h * 0 + torch.linspace(0, 6e4, 4), (4,), eps=0.0) + (h * 0).norm().log()  # born
            return self.last(h)


CASES[-1] = Case(UnderAutocast, "log")


@case("log")
class WithoutGradients(Net):
    def middle(self, h: Tensor) -> Tensor:
        return h.abs().log()  # born

    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            return super().forward(x)


# --- in the loss ---


@case("log", part="loss")
class LogInTheLoss(Net):
    def middle(self, h: Tensor) -> Tensor:
        return h

    def loss(self, out: Tensor) -> Tensor:
        p = (out * 0).clamp(min=0)
        return -torch.log(p).mean()  # born


@case("div", part="loss")
class EmptyBatchOfTargets(Net):
    def middle(self, h: Tensor) -> Tensor:
        return h

    def loss(self, out: Tensor) -> Tensor:
        keep = torch.zeros(3)
        return (out.sum(-1) * keep).sum() / keep.sum()  # born


@case("cross_entropy", part="loss")
class CrossEntropyOfNothing(Net):
    def middle(self, h: Tensor) -> Tensor:
        return h

    def loss(self, out: Tensor) -> Tensor:
        target = torch.full((3,), -100)
        return F.cross_entropy(out, target)  # born


# --- in the backward ---


@case("sqrt", part="backward")
class SlopeOfSqrt(Net):
    def middle(self, h: Tensor) -> Tensor:
        return h.abs().sqrt()  # born


@case("sqrt", part="backward")
class SlopeOfANorm(Net):
    def middle(self, h: Tensor) -> Tensor:
        zero = h * 0
        length = (zero**2).sum(-1, keepdim=True).sqrt()  # born
        return h + length


@case("sqrt", part="backward")
class WhereTrick(Net):
    def middle(self, h: Tensor) -> Tensor:
        root = h.sqrt()  # born
        return torch.where(h > 0, root, h)


@case("log", part="backward")
class WhereTrickOfLog(Net):
    def middle(self, h: Tensor) -> Tensor:
        logs = h.abs().log()  # born
        return torch.where(h > 0, logs, h)


@case("pow", part="backward")
class SlopeOfAPower(Net):
    def middle(self, h: Tensor) -> Tensor:
        return h.abs() ** 0.3  # born


@case("acos", part="backward")
class SlopeOfAcos(Net):
    def middle(self, h: Tensor) -> Tensor:
        return torch.acos(h * 0 + 1)  # born


@case("rsqrt", part="backward")
class SlopeTooSteep(Net):
    def middle(self, h: Tensor) -> Tensor:
        return (h * 0 + 1e-30).rsqrt()  # born


@case("sqrt", part="backward", path="root")
class SlopeInACheckpoint(Net):
    class Root(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return h.abs().sqrt()  # born

    def __init__(self) -> None:
        super().__init__()
        self.root = self.Root()

    def middle(self, h: Tensor) -> Tensor:
        return checkpoint(self.root, h, use_reentrant=False)


@case("sqrt", part="backward", path="root")
class SlopeInAReentrantCheckpoint(SlopeInACheckpoint):
    class Root(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return h.abs().sqrt()  # born

    def middle(self, h: Tensor) -> Tensor:
        return checkpoint(self.root, h, use_reentrant=True)


@case("sqrt", part="backward", path="one|two")
class SlopeInASharedModule(Net):
    class Root(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return h.sqrt()  # born

    def __init__(self) -> None:
        super().__init__()
        self.one = self.two = self.Root()

    def middle(self, h: Tensor) -> Tensor:
        return self.two(self.one(h.abs() + 1) - self.one(h.abs() + 1))


@case("Own", part="backward")
class SlopeOfACustomFunction(Net):
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, h: Tensor) -> Tensor:
            ctx.save_for_backward(h)
            return h * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            (h,) = ctx.saved_tensors
            return grad / h

    def middle(self, h: Tensor) -> Tensor:
        return self.Own.apply(h)  # born


@case("sqrt", part="backward")
class SlopeInTheLoss(Net):
    def middle(self, h: Tensor) -> Tensor:
        return h

    def loss(self, out: Tensor) -> Tensor:
        distance = ((out - out.detach()) ** 2).sum(-1)
        return distance.sqrt().mean()  # born


@case("sqrt", part="backward")
class SlopeWithDropout(Net):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(4)

    def middle(self, h: Tensor) -> Tensor:
        kept = self.drop(self.norm(h).relu())
        return kept.sqrt()  # born


@case("exp", part="backward")
class HalfGradientOverflow(Net):
    def middle(self, h: Tensor) -> Tensor:
        small = (h * 0 + 11).half()
        grown = small.exp()  # born
        return (grown.float() - 59872) * 1e4 + h


@case("hypot", part="backward")
class SlopeOfHypot(Net):
    def middle(self, h: Tensor) -> Tensor:
        return torch.hypot(h * 0, h * 0)  # born


@case("div", part="backward")
class SlopeOfATinyQuotient(Net):
    def middle(self, h: Tensor) -> Tensor:
        return (1 / (h * 0 + 1e-20)) * 1e-20 + h  # born
