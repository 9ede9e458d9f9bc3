"""Statistics against float64 numpy, every kind of tensor, and nothing disturbed by looking."""

from __future__ import annotations

import collections
import math
import tracemalloc
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.parameter import UninitializedParameter

from layerstep.tensors import blocks, counting
from layerstep.tensors import kinds as kinds_module
from layerstep.tensors import summary as module
from layerstep.tensors.shapes import dtype_name, shape_line, tensors_in
from layerstep.tensors.summary import Stats, Summary, summarize
from tensor_cases import (
    FLOATS,
    INF,
    NAN,
    NOTHING,
    Ops,
    Quiet,
    as_float64,
    assert_same,
    generator,
    kinds,
    odd_tensors,
    quick,
    stats,
    truth,
    views,
)

# --- against numpy -----------------------------------------------------------------------------------


@quick
@given(tensor=views(), block=st.sampled_from([1, 2, 5, 16, blocks.BLOCK]))
def test_any_view_equals_float64_numpy(tensor: torch.Tensor, block: int) -> None:
    with mock.patch.object(blocks, "BLOCK", block):
        assert_same(stats(tensor), truth(as_float64(tensor)))
    assert summarize(tensor).shape == tuple(tensor.shape)


@quick
@given(
    values=st.lists(st.floats(width=32, allow_subnormal=True), max_size=40),
    dtype=st.sampled_from(FLOATS),
    block=st.sampled_from([1, 3, 64]),
)
def test_any_floats_equal_float64_numpy(values: list[float], dtype: torch.dtype, block: int) -> None:
    tensor = torch.tensor(values, dtype=torch.float64).to(dtype)
    with mock.patch.object(blocks, "BLOCK", block), np.errstate(all="ignore"):
        found, right = stats(tensor), truth(as_float64(tensor), torch.finfo(dtype).tiny)
    assert_same(found, right)
    assert found.subnormal == right.subnormal


@quick
@given(tensor=views(), limit=st.integers(1, 60), block=st.sampled_from([2, 16, blocks.BLOCK]))
def test_a_sample_is_no_larger_than_asked(tensor: torch.Tensor, limit: int, block: int) -> None:
    with mock.patch.object(blocks, "BLOCK", block):
        found, again = stats(tensor, limit=limit), stats(tensor, limit=limit)
    exact = truth(as_float64(tensor))
    assert found == again
    assert found.count == tensor.numel()
    if found.sampled is None:
        return assert_same(found, exact)
    assert 0 < found.sampled <= limit < tensor.numel()
    assert found.nan <= exact.nan and found.zero <= exact.zero
    if found.min is not None and found.max is not None and exact.min is not None and exact.max is not None:
        assert exact.min <= found.min <= found.max <= exact.max


@pytest.mark.parametrize("noncontiguous", [False, True])
def test_a_sample_is_even_and_walks_across_the_columns(noncontiguous: bool) -> None:
    columns = torch.arange(64, dtype=torch.float32).expand(4096, 64).clone()
    wide = torch.cat([columns, columns], dim=1)[:, :64] if noncontiguous else columns
    found = stats(wide, limit=1024)  # 64 * 4096 / 1024 is a multiple of the row
    assert found.sampled is not None and 900 < found.sampled <= 1024
    assert (found.min, found.max) == (0, 63)
    assert found.mean == pytest.approx(31.5, abs=0.5)


def test_a_limit_that_holds_all_is_exact_and_none_left_means_no_look() -> None:
    assert stats(torch.ones(8), limit=8).sampled is None
    assert summarize(torch.ones(8), limit=0).stats is None
    assert summarize(torch.ones(8), limit=0).note == "not looked at"


# --- values that naive sums get wrong ----------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 1000.0, -1e6])
def test_a_small_spread_far_from_zero(dtype: torch.dtype, offset: float) -> None:
    tensor = (torch.randn(300_000, generator=generator(), dtype=torch.float64) * 1e-3 + offset).to(dtype)
    found, right = stats(tensor), truth(as_float64(tensor))
    assert_same(found, right)
    assert found.std == pytest.approx(right.std, rel=1e-6)


def test_blocks_that_differ_from_each_other() -> None:
    tensor = torch.linspace(-1e4, 1e4, 400_001)
    tensor[:1000] += 1e6
    assert_same(stats(tensor), truth(as_float64(tensor)))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.full((100_000,), 65504.0, dtype=torch.float16),
        torch.full((100_000,), 3e38),
        torch.full((100_000,), -3e38, dtype=torch.bfloat16),
        torch.tensor([3e38, -3e38, 1.0] * 1000),
        torch.tensor([1e-45, -3e-45, 0.0]),
        torch.tensor([1e-30, 2e-30]),
        torch.tensor([1e20, 1e-20, 0.0, NAN, INF]),
        torch.tensor([1e18, 1.0] * 70_000, dtype=torch.float32),
    ],
    ids=["f16", "f32", "bf16", "both signs", "subnormal", "small", "wide", "two blocks"],
)
def test_extremes_are_not_taken_for_infinities(tensor: torch.Tensor) -> None:
    assert_same(stats(tensor), truth(as_float64(tensor)))


def test_float64_beyond_its_squares() -> None:
    found = stats(torch.tensor([1e300, -1e300, 3e300, 0.0], dtype=torch.float64))
    assert found.mean == pytest.approx(0.75e300)
    assert found.std == pytest.approx(1e300 * np.std([1, -1, 3, 0]))
    assert found.l2 == pytest.approx(1e300 * math.sqrt(11))
    top = stats(torch.tensor([1.7e308, -1.7e308] * 70_000, dtype=torch.float64))
    assert (top.mean, top.abs_mean, top.l2) == (0.0, pytest.approx(1.7e308), INF)
    assert top.std == pytest.approx(1.7e308)
    low = stats(torch.tensor([1e-200, 3e-200], dtype=torch.float64))
    assert (low.std, low.l2) == (pytest.approx(1e-200), pytest.approx(math.sqrt(10) * 1e-200))
    assert stats(torch.tensor([5e-324], dtype=torch.float64)).l2 == 5e-324


def test_whole_numbers() -> None:
    assert_same(stats(torch.tensor([-(2**63), 2**63 - 1, 0])), truth([-(2.0**63), 2.0**63, 0]))
    assert stats(torch.tensor([2**64 - 1], dtype=torch.uint64)).max == 2.0**64
    assert_same(stats(torch.tensor([2**31 - 1, -(2**31)], dtype=torch.int32)), truth([2**31 - 1, -(2**31)]))
    assert_same(stats(torch.tensor([True, False, True])), truth([1, 0, 1]))


def test_nothing_finite_and_nothing_at_all() -> None:
    assert stats(torch.full((3,), NAN)) == Stats(3, 3, 0, 0, 0, 0, 0, 0, *NOTHING)
    assert stats(torch.tensor([INF, -INF, -INF])) == Stats(3, 0, 1, 2, 0, 0, 0, 0, *NOTHING)
    assert stats(torch.empty(0, 3)) == Stats(0, 0, 0, 0, 0, 0, 0, 0, *NOTHING)
    alone = Stats(1, 0, 0, 0, 0, 1, 0, 0, -2.0, -2.0, -2.0, 0.0, 2.0, 2.0, 2.0, 2.0)
    assert stats(torch.tensor(-2.0)) == alone


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float8_e4m3fn, torch.float8_e5m2])
def test_subnormal_is_relative_to_the_dtype(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).tiny
    values = torch.tensor([tiny, -tiny, tiny / 2, -tiny / 2, tiny / 4, 0.0, -0.0, 1.0], dtype=torch.float64)
    for tensor in (values.to(dtype), values.abs().to(dtype), (-values.abs()).to(dtype)):
        found = stats(tensor)
        assert (found.subnormal, found.zero, found.negative + found.positive) == (3, 2, 6)
    assert stats(values.to(dtype)).negative == 2
    assert stats(torch.tensor([0, 1, -1])).subnormal == stats(torch.tensor([True])).subnormal == 0


def test_flushed_subnormals_are_still_counted() -> None:
    tensor = torch.tensor([1e-40, 2e-40, 0.0, 0.0])
    if not torch.set_flush_denormal(True):
        pytest.skip("not on this processor")
    try:
        found = stats(tensor)
    finally:
        torch.set_flush_denormal(False)
    assert (found.subnormal, found.zero) == (2, 2)


@pytest.mark.parametrize("spread", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("size", [8191, 8192, 8193, 70_000, 300_001])
def test_lots_and_blocks_of_any_length(size: int, spread: float) -> None:
    tensor = torch.randn(size, generator=generator()) * spread + 1
    assert_same(stats(tensor), truth(as_float64(tensor)))


def test_ctrl_c_comes_out_at_once() -> None:
    seen = 0

    def interrupt(*_: Any) -> Any:
        nonlocal seen
        seen += 1
        raise KeyboardInterrupt

    with mock.patch.object(counting, "load", interrupt), pytest.raises(KeyboardInterrupt):
        summarize(torch.ones(2_000_000))
    assert seen == 1


def test_non_finite_only_in_some_blocks() -> None:
    tensor = torch.randn(200_000, generator=generator())
    tensor[70_000:140_000] = NAN
    tensor[-1], tensor[0] = INF, -INF
    assert_same(stats(tensor), truth(as_float64(tensor)))


# --- kinds of tensor ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def zoo() -> dict[str, torch.Tensor]:
    return kinds()


def test_layouts_and_notes(zoo: dict[str, torch.Tensor]) -> None:
    found = {name: summarize(tensor) for name, tensor in zoo.items()}
    for name in ("sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"):
        assert (found[name].layout, found[name].note) == (name, "stored values")
    for name, layout in {
        "meta": "meta", "lazy": "lazy", "lazy buffer": "lazy", "nested": "nested", "jagged": "nested",
        "qint8": "quantized", "mkldnn": "mkldnn", "grad": "", "subclass": "", "conj": "",
    }.items():  # fmt: skip
        assert found[name].layout == layout, name
    unreadable = {name for name, each in found.items() if each.stats is None}
    assert unreadable == {"meta", "lazy", "lazy buffer", "freed", "wrapper", "int4", "bits8", "float4"}
    assert all(found[name].note for name in unreadable)
    assert found["freed"].note == "its storage is freed"
    assert found["complex64"].note == found["conj"].note == "of |z|"
    assert (
        found["grad"].requires_grad
        and found["parameter"].requires_grad
        and not found["subclass"].requires_grad
    )


def test_sparse_counts_the_zeros_that_are_not_stored(zoo: dict[str, torch.Tensor]) -> None:
    for name in ("sparse_coo", "sparse_csr", "sparse_csc"):
        found = stats(zoo[name])
        assert (found.count, found.zero, found.min, found.max, found.mean) == (6, 3, -2, 4, 1), name
    for name in ("sparse_bsr", "sparse_bsc"):
        assert (stats(zoo[name]).count, stats(zoo[name]).zero, stats(zoo[name]).mean) == (16, 12, 0.5)
    assert (stats(zoo["uncoalesced"]).zero, stats(zoo["uncoalesced"]).max) == (8, 3)
    assert (stats(zoo["hybrid"]).count, stats(zoo["hybrid"]).zero) == (6, 4)
    assert summarize(zoo["sparse_coo"]).nbytes == 3 * 4 + 2 * 3 * 8
    assert summarize(zoo["sparse_csr"]).nbytes == 3 * 4 + 3 * 8 + 3 * 8
    with mock.patch.object(kinds_module, "COPY_LIMIT", 0):
        assert summarize(zoo["uncoalesced"]).note == "stored values, duplicates not added up"


def test_nested(zoo: dict[str, torch.Tensor]) -> None:
    for name in ("nested", "jagged"):
        assert summarize(zoo[name]).shape == (2, -1, 3)
        assert_same(stats(zoo[name]), truth([1] * 6 + [0] * 12))
    assert_same(stats(zoo["holes"]), truth([0, 1, 10, 11, 12, 13, *range(20, 30)]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        many = torch.nested.nested_tensor([torch.ones(1)] * 50)
    assert 0 < (stats(many, limit=10).sampled or 0) <= 10


def test_quantized_is_read_as_its_real_values(zoo: dict[str, torch.Tensor]) -> None:
    for name in ("qint8", "quint8 by channel", "qint32", "quint4x2"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            right = truth(as_float64(zoo[name].dequantize()))
        assert_same(stats(zoo[name]), right)
    assert summarize(zoo["qint8"]).nbytes == 6
    with mock.patch.object(kinds_module, "COPY_LIMIT", 1):
        assert summarize(zoo["quint4x2"]).stats is None


@pytest.mark.parametrize("name", ["qint8", "quint8 by channel", "quint4x2", "sparse_coo", "uncoalesced"])
def test_freed_storages_are_neither_read_nor_grown(name: str) -> None:
    tensor = kinds()[name]
    storage = (tensor._values() if tensor.is_sparse else tensor).untyped_storage()
    storage.resize_(0)
    assert summarize(tensor).note == "its storage is freed"
    assert storage.nbytes() == 0


def test_complex_is_its_magnitude(zoo: dict[str, torch.Tensor]) -> None:
    for name in ("complex64", "complex32", "conj"):
        assert_same(stats(zoo[name]), truth([5, 0]))
    assert stats(zoo["complex128"]).max == pytest.approx(5e200)
    assert_same(stats(zoo["negative"]), truth([-2, 4]))


def test_others_have_their_values(zoo: dict[str, torch.Tensor]) -> None:
    for name in ("grad", "parameter", "subclass", "mkldnn"):
        assert_same(stats(zoo[name]), truth([1, 0, -2, 0, 4, 0]))
    assert_same(stats(zoo["zero"]), truth([0] * 6))
    assert_same(stats(zoo["e8m0"]), truth([1, 2]))
    assert_same(stats(zoo["many dimensions"]), truth([1] * 256))
    assert_same(stats(zoo["unfolded"]), truth(as_float64(zoo["unfolded"])))


def test_expanded_costs_what_it_holds(zoo: dict[str, torch.Tensor]) -> None:
    found = summarize(zoo["expanded"])
    assert found.nbytes == 8
    counts = (2 * 10**11, 10**11, 0, 0, 0, 0, 10**11, 0)
    assert found.stats == Stats(*counts, 1, 1, 1, 0, 1, 10**11, math.sqrt(10**11), 1)
    assert stats(zoo["expanded"], limit=10).sampled is None


def test_a_lazy_clone_stays_one() -> None:
    is_lazy = torch._C._is_cow_tensor  # type: ignore[attr-defined]
    base = torch.arange(12.0)
    clone = torch._lazy_clone(base)
    for view in (clone, clone.view(3, 4).t()[1:]):
        assert_same(stats(view), truth(as_float64(view.to("cpu", copy=True))))
        assert stats(view, limit=5).sampled
    assert is_lazy(clone)


def test_fake_tensors_and_their_mode() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    real, env = torch.ones(3), ShapeEnv()
    with FakeTensorMode(shape_env=env) as mode:
        fake = torch.empty(2, 3)
        assert_same(stats(real), truth([1, 1, 1]))
    symbolic = mode.from_tensor(torch.ones(5, 7))
    assert (summarize(fake).layout, summarize(fake).shape, summarize(fake).stats) == ("fake", (2, 3), None)
    assert (summarize(symbolic).shape, summarize(symbolic).nbytes) == ((-1, -1), None)
    assert shape_line(symbolic) == "f32[*, *]"
    assert not env.guards


@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_functorch_levels() -> None:
    outside, seen = torch.ones(3), list[Summary]()

    def look(tensor: torch.Tensor) -> torch.Tensor:
        seen.extend([summarize(tensor), summarize(outside)])
        return tensor.sum()

    x = torch.arange(6.0).view(2, 3)
    torch.vmap(look)(x)
    torch.func.grad(look)(x)
    torch.func.jvp(look, (x,), (x,))
    torch.func.functionalize(look)(x)
    vmapped, graded, dual, functional = seen[::2]
    assert (vmapped.layout, vmapped.shape) == ("vmapped", (3,))
    assert vmapped.stats is not None and (vmapped.stats.count, vmapped.stats.max) == (6, 5.0)
    assert "all samples of the vmap" in vmapped.note
    assert "vmap" in vmapped.note
    assert functional.layout == "functional" and functional.stats is None
    for each in (graded, dual):
        assert each.stats is not None and each.layout == ""
        assert_same(each.stats, truth(range(6)))
    for each in seen[1::2]:
        assert each.stats is not None and each.stats.mean == 1


@pytest.fixture
def mesh() -> Iterator[Any]:
    dist = pytest.importorskip("torch.distributed")
    if not dist.is_available():
        pytest.skip("torch without distributed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.distributed.tensor import DeviceMesh
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
        try:
            yield DeviceMesh("cpu", [0, 1])
        finally:
            dist.destroy_process_group()


def test_dtensor_is_its_local_shard(mesh: Any) -> None:
    from torch.distributed.tensor import DTensor, Shard

    found = summarize(DTensor.from_local(torch.arange(6.0).view(2, 3), mesh, [Shard(0)], run_check=False))
    assert (found.layout, found.shape, found.note, found.nbytes) == ("dtensor", (4, 3), "local shard", 24)
    assert found.stats is not None
    assert_same(found.stats, truth(range(6)))


def test_a_broken_tensor_is_described_all_the_same() -> None:
    with mock.patch.object(module, "measure", side_effect=ZeroDivisionError):
        found = summarize(torch.ones(2))
    assert (found.shape, found.stats, found.note) == ((2,), None, "values cannot be read: ZeroDivisionError")
    nonsense: Any = "no tensor"
    assert summarize(nonsense).stats is None


@pytest.mark.parametrize("limit", [None, 1, 3])
@pytest.mark.filterwarnings("ignore")
def test_no_odd_tensor_raises(limit: int | None) -> None:
    seen = 0
    for tensor in odd_tensors():
        found = summarize(tensor, limit=limit)
        assert found.stats is not None or found.note, found
        assert shape_line(tensor).startswith(found.dtype)
        seen += 1
    assert seen > 200


# --- looking changes nothing -------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_modes_see_nothing(zoo: dict[str, torch.Tensor]) -> None:
    with Ops() as ops:
        for tensor in zoo.values():
            summarize(tensor)
            summarize(tensor, limit=2)
    assert ops.seen == []


def test_no_randomness_version_or_gradient_node() -> None:
    leaf = torch.randn(5, 7, generator=generator()).requires_grad_()
    tensor = (leaf * 2)[:, ::2]
    before = (tensor._version, tensor.grad_fn, tensor.detach().clone())
    state, numpy_state = torch.get_rng_state(), np.random.get_state()
    for limit in (None, 3):
        summarize(tensor, limit=limit)
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], numpy_state[1])  # type: ignore[arg-type, index]
    assert (tensor._version, tensor.grad_fn) == before[:2]
    assert torch.equal(tensor, before[2])
    tensor.sum().backward()
    assert leaf.grad is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_the_surroundings_do_not_matter(dtype: torch.dtype) -> None:
    tensor = torch.arange(-10, 20).to(dtype).view(5, 6).t()
    right = truth(as_float64(tensor))
    with torch.inference_mode():
        assert_same(stats(tensor), right)
        made_inside = tensor.clone()
    assert_same(stats(made_inside), right)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"), np.errstate(all="raise"):
        assert_same(stats(tensor), right)
    old = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)
        assert_same(stats(tensor), right)
        assert stats(tensor, limit=7).sampled
    finally:
        torch.set_default_dtype(old)
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(3_000_000).view(3000, 1000)[:, :999],
        torch.ones(4_000_000, dtype=torch.bfloat16),
        torch.ones(2_000_000).to(torch.float8_e5m2).view(2, 1000, 1000).permute(2, 0, 1)[1:],
    ],
    ids=["sliced", "bf16", "permuted f8"],
)
def test_no_copy_of_it_all(tensor: torch.Tensor) -> None:
    tracemalloc.start()  # sees numpy's buffers, into which torch converts
    try:
        found = stats(tensor)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found.mean, found.std, found.zero) == (1, 0, 0)
    assert peak < 3 << 20


# --- values of any kind ------------------------------------------------------------------------------


@dataclass
class Output:
    logits: torch.Tensor
    loss: float | None = None
    extra: list[Any] = field(default_factory=list)


class Pair(NamedTuple):
    left: torch.Tensor
    right: int


class Attributes(collections.OrderedDict[str, Any]):
    """As a ModelOutput: a dictionary whose keys are attributes too."""

    def __init__(self, **items: Any) -> None:
        super().__init__(items)
        self.__dict__.update(items)


class Dynamic(collections.UserDict[str, Any]):
    """As a BatchEncoding: attributes by `__getattr__`."""

    def __getattr__(self, name: str) -> Any:
        return self.data[name]


class Broken(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError


A, B = torch.zeros(2, 16), torch.zeros(3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.zeros(2, 16, 64), "f32[2, 16, 64]"),
        (torch.tensor(1.0), "f32[]"),
        ((A, None), "(f32[2, 16], None)"),
        ((A,), "(f32[2, 16],)"),
        ([], "[]"),
        ({"logits": A, "loss": torch.tensor(1.0)}, "{logits: f32[2, 16], loss: f32[]}"),
        ({"a b": A, 3: True}, "{'a b': f32[2, 16], 3: True}"),
        (Output(A, 0.25), "Output(logits=f32[2, 16], loss=0.25, extra=[])"),
        (Pair(A, 7), "Pair(left=f32[2, 16], right=7)"),
        (B.max(dim=0), "max(values=i64[], indices=i64[])"),
        (Attributes(last_hidden_state=A), "Attributes(last_hidden_state=f32[2, 16])"),
        (collections.OrderedDict(a=B), "OrderedDict(a: i64[3])"),
        ([A] * 6, "[f32[2, 16], f32[2, 16], f32[2, 16], f32[2, 16], … 2 more]"),
        (((A, B), [B]), "((f32[2, 16], i64[3]), [i64[3]])"),
        ("short", "'short'"),
        ("x" * 1000, repr("x" * 24) + "…"),
        (10**9999, "int"),
        (-3, "-3"),
        (1 / 3, "0.333333"),
        (np.zeros((2, 3), np.float32), "np.float32[2, 3]"),
        (torch.float16, "torch.float16"),
        (Output, "type"),
        (object(), "object"),
        (UninitializedParameter(), "f32[]"),
        (torch.zeros(2).as_subclass(Quiet), "f32[2]"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_shape_line(value: Any, text: str) -> None:
    assert shape_line(value) == text


def test_shape_line_is_bounded_and_survives() -> None:
    class Deaf:
        def __repr__(self) -> str:
            raise RuntimeError

    loop: list[Any] = [A]
    loop.append(loop)
    assert shape_line(loop) == "[f32[2, 16], …]"
    assert shape_line(Broken(a=1)) == "Broken()"
    assert shape_line([Deaf()]) == "[Deaf]"
    assert shape_line([A] * 3, most=1) == "[f32[2, 16], … 2 more]"
    deep: Any = A
    for _ in range(100):
        deep = [deep] * 3
    assert len(shape_line(deep)) <= 160
    assert len(shape_line({"k" * 500: {"k" * 500: "v" * 500}})) <= 160


def test_tensors_in() -> None:
    value = (
        {"a": A, "b c": [B]},
        Output(A, extra=[B]),
        Pair(B, 1),
        Attributes(x=A),
        Dynamic(y=B),
        B.max(dim=0),
    )
    found = tensors_in(value)
    assert [path for path, _ in found] == [
        "[0]['a']", "[0]['b c'][0]", "[1].logits", "[1].extra[0]", "[2].left", "[3].x", "[4].y",
        "[5].values", "[5].indices",
    ]  # fmt: skip
    for path, tensor in found:
        assert eval(f"value{path}", {"value": value}) is tensor or path.startswith("[5]")
    assert tensors_in(A) == [("", A)]
    assert tensors_in(None) == tensors_in("text") == tensors_in(Output) == []


def test_a_key_that_hides_a_method_is_not_an_attribute() -> None:
    assert [path for path, _ in tensors_in(Dynamic(items=A, other=B))] == ["['items']", ".other"]


def test_tensors_in_is_bounded_and_survives() -> None:
    loop: dict[str, Any] = {"t": A}
    loop["self"] = [loop, A]
    assert [path for path, _ in tensors_in(loop)] == ["['t']", "['self'][1]"]
    assert len(tensors_in([A] * 100)) == 32
    assert len(tensors_in([A] * 100, most=2)) == 2
    assert tensors_in(range(10)) == tensors_in([0] * 10**6) == []
    assert tensors_in([Broken(a=A), B]) == [("[1]", B)]
    deep: Any = A
    for _ in range(6):
        deep = [deep]
    assert [path for path, _ in tensors_in(deep)] == ["[0]" * 6]
    assert tensors_in([deep]) == []


def test_model_output_of_transformers() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    value = outputs.BaseModelOutput(last_hidden_state=A, hidden_states=(A, A))
    assert (
        shape_line(value)
        == "BaseModelOutput(last_hidden_state=f32[2, 16], hidden_states=(f32[2, 16], f32[2, 16]))"
    )
    assert [path for path, _ in tensors_in(value)] == [
        ".last_hidden_state",
        ".hidden_states[0]",
        ".hidden_states[1]",
    ]


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.float32, "f32"), (torch.float64, "f64"), (torch.float16, "f16"), (torch.bfloat16, "bf16"),
        (torch.float8_e4m3fn, "f8e4m3fn"), (torch.int8, "i8"), (torch.int64, "i64"), (torch.uint8, "u8"),
        (torch.uint64, "u64"), (torch.bool, "bool"), (torch.complex64, "c64"), (torch.complex128, "c128"),
        (torch.qint8, "qint8"), (torch.quint4x2, "quint4x2"), (torch.bits8, "bits8"),
    ],
)  # fmt: skip
def test_dtype_names(dtype: torch.dtype, name: str) -> None:
    assert dtype_name(dtype) == name


@pytest.mark.parametrize("seed", range(12))
def test_a_brief_look_says_the_same_about_what_it_looks_at(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.randn(70_001, generator=generator) * 10.0 ** (seed - 6) + (seed % 3) * 1000
    tensor[:: seed + 2] = 0.0
    tensor[1 :: seed + 50] = [float("nan"), float("inf"), -0.0, 1e-42][seed % 4]
    full, brief = summarize(tensor).stats, summarize(tensor, brief=True).stats
    assert full is not None and brief is not None
    for name in ("count", "nan", "posinf", "neginf", "zero", "min", "max", "mean", "std", "l2", "max_norm"):
        assert getattr(full, name) == getattr(brief, name), name
    left_out = ("negative", "positive", "subnormal", "abs_mean", "l1")
    assert all(getattr(brief, name) is None for name in left_out)


def test_the_public_names() -> None:
    assert set(module.__all__) == {"Stats", "Summary", "summarize"}
