"""Tensors of every kind, and their statistics the plain way in float64."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._python_dispatch import TorchDispatchMode

from layerstep.tensors.summary import Stats, summarize

INF, NAN = math.inf, math.nan
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
quick = settings(deadline=None, max_examples=60)


def stats(tensor: torch.Tensor, *, limit: int | None = None) -> Stats:
    found = summarize(tensor, limit=limit).stats
    assert found is not None, summarize(tensor)
    return found


def truth(values: Any, tiny: float = 0.0) -> Stats:
    """The same figures the plain way, in float64."""
    array = np.asarray(values, dtype=np.float64).reshape(-1)
    good = array[np.isfinite(array)]
    sizes = np.abs(good)
    odd = (np.isnan(array), array == INF, array == -INF)
    counts = (*odd, good == 0, good < 0, good > 0, (sizes > 0) & (sizes < tiny))
    heads = (array.size, *(int(np.count_nonzero(c)) for c in counts))
    if not good.size:
        return Stats(*heads, *NOTHING)
    moments = (good.min(), good.max(), good.mean(), good.std(), sizes.mean(), sizes.sum())
    return Stats(*heads, *(float(m) for m in (*moments, np.linalg.norm(good), sizes.max())))


NOTHING = [None] * 8
EXACT = ("count", "nan", "posinf", "neginf", "zero", "negative", "positive", "min", "max", "max_norm")


def assert_same(found: Stats, right: Stats) -> None:
    for name in EXACT:
        assert getattr(found, name) == getattr(right, name), name
    if right.mean is None:
        assert found.mean is found.std is found.abs_mean is found.l1 is found.l2 is None
        return
    assert right.std is not None and right.abs_mean is not None
    size = math.hypot(right.mean, right.std)
    assert found.mean == pytest.approx(right.mean, rel=1e-6, abs=1e-6 * right.std + 1e-12 * size)
    assert found.std == pytest.approx(right.std, rel=1e-5, abs=1e-12 * size)
    assert found.abs_mean == pytest.approx(right.abs_mean, rel=1e-6)
    assert found.l1 == pytest.approx(right.l1, rel=1e-6)
    assert found.l2 == pytest.approx(right.l2, rel=1e-6)


def as_float64(tensor: torch.Tensor) -> Any:
    return tensor.detach().to(torch.float64).numpy()


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """A tensor of any readable dtype, sliced, transposed and expanded, with some non-finite values."""
    shape = draw(st.lists(st.integers(0, 7), min_size=0, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scale = draw(st.sampled_from([1.0, 1e-3, 50.0]))
    offset = draw(st.sampled_from([0.0, 7.0]))
    base = torch.from_numpy(np.asarray(rng.standard_normal(shape) * scale + offset))
    dtype = draw(st.sampled_from([*FLOATS, *FLOAT8, *SIGNED, *UNSIGNED, torch.bool]))
    if dtype in FLOATS and draw(st.booleans()):
        for value in (NAN, INF, -INF, 0.0):
            part = draw(st.sampled_from([0.0, 0.1, 1.0]))
            base[torch.from_numpy(np.asarray(rng.random(shape) < part))] = value
    tensor = (base.abs() if dtype in UNSIGNED else base).to(dtype)
    for dim in range(tensor.dim()):
        match draw(st.sampled_from(["keep", "step", "tail", "swap", "expand"])):
            case "step":
                tensor = tensor[(slice(None),) * dim + (slice(None, None, 2),)]
            case "tail":
                tensor = tensor[(slice(None),) * dim + (slice(1, None),)]
            case "swap":
                tensor = tensor.transpose(0, dim)
            case "expand":
                tensor = tensor.unsqueeze(dim).expand(*tensor.shape[:dim], 3, *tensor.shape[dim:])
    return tensor


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


class Quiet(torch.Tensor):
    """A subclass that refuses every call."""

    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("not for you")

    @classmethod
    def __torch_dispatch__(cls, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("not for you either")


class Wrapper(Quiet):
    """One that has a shape and no memory: a read of it below its dispatch is a segmentation fault."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        made: Any = torch.Tensor._make_wrapper_subclass  # type: ignore[attr-defined]
        return made(cls, inner.shape, dtype=inner.dtype)  # type: ignore[no-any-return]


def freed() -> torch.Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


def kinds() -> dict[str, torch.Tensor]:
    """One of each that is not a plain strided tensor of a common dtype."""
    x = torch.tensor([[1.0, 0.0, -2.0], [0.0, 4.0, 0.0]])
    pair = [torch.ones(2, 3), torch.zeros(4, 3)]
    four = torch.eye(4)
    channels: tuple[Any, ...] = (torch.tensor([0.5, 1.0]), torch.tensor([0, 3]), 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "sparse_coo": x.to_sparse(),
            "uncoalesced": torch.sparse_coo_tensor(
                torch.tensor([[0, 0], [1, 1]]), torch.tensor([1.0, 2.0]), (3, 3)
            ),
            "hybrid": torch.sparse_coo_tensor(torch.tensor([[0]]), torch.tensor([[1.0, 2.0]]), (3, 2)),
            "sparse_csr": x.to_sparse_csr(),
            "sparse_csc": x.to_sparse_csc(),
            "sparse_bsr": four.to_sparse_bsr((2, 2)),
            "sparse_bsc": four.to_sparse_bsc((2, 2)),
            "nested": torch.nested.nested_tensor(pair),
            "jagged": torch.nested.nested_tensor(pair, layout=torch.jagged),
            "holes": torch.nested.narrow(
                torch.arange(30.0).view(3, 5, 2), 1, 0, torch.tensor([1, 2, 5]), layout=torch.jagged
            ),
            "qint8": torch.quantize_per_tensor(x, 0.5, 3, torch.qint8),
            "quint8 by channel": torch.quantize_per_channel(x, *channels, torch.quint8),
            "qint32": torch.quantize_per_tensor(x, 0.25, 0, torch.qint32),
            "quint4x2": torch.quantize_per_channel(x, *channels[:1], torch.zeros(2), 0, torch.quint4x2),
            "meta": x.to("meta"),
            "mkldnn": x.to_mkldnn(),
            "zero": torch._efficientzerotensor((2, 3)),
            "lazy": UninitializedParameter(),
            "lazy buffer": UninitializedBuffer(),
            "complex64": torch.tensor([3 + 4j, 0j]),
            "complex32": torch.tensor([3 + 4j, 0j], dtype=torch.complex32),
            "complex128": torch.tensor([3e200 + 4e200j, 0j], dtype=torch.complex128),
            "conj": torch.tensor([3 + 4j, 0j]).conj(),
            "negative": torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
            "grad": x.clone().requires_grad_(),
            "parameter": torch.nn.Parameter(x.clone()),
            "freed": freed(),
            "subclass": x.clone().as_subclass(Quiet),
            "wrapper": Wrapper(x),
            "int4": torch.empty(3, dtype=torch.int4),
            "bits8": torch.empty(3, dtype=torch.bits8),
            "float4": torch.empty(3, dtype=torch.float4_e2m1fn_x2),
            "e8m0": torch.tensor([1.0, 2.0]).to(torch.float8_e8m0fnu),
            "expanded": torch.tensor([1.0, NAN]).expand(10**6, 10**5, 2),
            "many dimensions": torch.ones([2] * 8 + [1] * 40).transpose(0, 7),
            "unfolded": torch.arange(10.0).unfold(0, 4, 1),
        }


def odd_tensors() -> Iterator[torch.Tensor]:
    """Every kind through every view it allows."""
    edits: list[Callable[[Any], Any]] = [
        lambda t: t,
        lambda t: t.t(),
        lambda t: t[1:],
        lambda t: t[..., ::2],
        lambda t: t.unsqueeze(0).expand(3, *t.shape),
        lambda t: t.detach(),
        lambda t: t.as_strided((2, 2), (0, 0)),
        lambda t: t.as_subclass(Quiet),
        lambda t: torch._neg_view(t),
        lambda t: t.to("meta"),
    ]
    convert: list[Callable[[Any], Any]] = [lambda t: t.to(torch.complex64), lambda t: t.bfloat16()]
    plain = {str(d): torch.ones(2, 3).to(d) for d in (*FLOATS, *FLOAT8, *SIGNED, *UNSIGNED)}
    for name, tensor in (kinds() | plain).items():
        for edit in edits if name in ("freed", "expanded") else edits + convert:  # torch itself would crash
            try:
                yield edit(tensor)
            except Exception:  # not a view of this kind
                continue


class Ops(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))
