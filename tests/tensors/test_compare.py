"""Comparing: figures against float64 numpy and torch itself, every likeness planted, the command's ins."""

from __future__ import annotations

import io
import math
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerstep import DebugConsole
from layerstep.demo.model import TinyTransformer
from layerstep.render.screen import to_text
from layerstep.tensors import blocks
from layerstep.tensors.compare import compare
from layerstep.tensors.comparison import Comparison
from layerstep.views import Group, Notice, Table

INF, NAN = math.inf, math.nan
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
OTHERS = [torch.int64, torch.int32, torch.uint8, torch.bool, torch.float8_e4m3fn]
quick = settings(deadline=None, max_examples=80)


def words(a: torch.Tensor, b: torch.Tensor) -> str:
    return compare(a, b).words


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


W = seeded(256, 64)


# --- figures -----------------------------------------------------------------------------------------


@st.composite
def pairs(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors of one shape, near to each other or not, of any two dtypes, strided, with odd values."""
    shape = draw(st.lists(st.integers(1, 6), max_size=3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scale = draw(st.sampled_from([1.0, 1e-3, 40.0]))
    base = rng.standard_normal(shape) * scale + draw(st.sampled_from([0.0, 5.0]))
    near = base + rng.standard_normal(shape) * scale * draw(st.sampled_from([0.0, 1e-7, 1e-3, 1.0]))
    both = []
    for values in (base, near):
        dtype = draw(st.sampled_from([*FLOATS, *OTHERS]))
        tensor = torch.from_numpy(np.asarray(np.abs(values) if dtype == torch.uint8 else values)).to(dtype)
        if dtype in FLOATS:
            for value in draw(st.lists(st.sampled_from([NAN, INF, -INF, 0.0]), max_size=3)):
                tensor.view(-1)[draw(st.integers(0, tensor.numel() - 1))] = value
        both.append(tensor)
    if len(shape) > 1 and draw(st.booleans()):
        both = [tensor.transpose(0, 1) for tensor in both]
    return both[0], both[1]


def truth(a: torch.Tensor, b: torch.Tensor) -> dict[str, Any]:
    """The same the plain way."""
    x, y = (tensor.to(torch.float64).numpy() for tensor in (a, b))
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    good = np.isfinite(x) & np.isfinite(y)
    found: dict[str, Any] = {
        "count": x.size,
        "differing": int((~same).sum()),
        "first": tuple(int(i) for i in np.argwhere(~same)[0]) if not same.all() else None,
        "finite_in_one": int((np.isfinite(x) != np.isfinite(y)).sum()),
    }
    gap, larger = np.abs(x - y)[good], np.maximum(np.abs(x), np.abs(y))[good]
    if gap.size:
        found["max_abs"], found["mean_abs"] = gap.max(), gap.mean()
        found["max_rel"] = max((g / s for g, s in zip(gap, larger, strict=True) if s), default=0.0)
    return found


@quick
@given(pair=pairs(), block=st.sampled_from([1, 3, 16, blocks.BLOCK]))
def test_figures_equal_float64_numpy(pair: tuple[torch.Tensor, torch.Tensor], block: int) -> None:
    a, b = pair
    with mock.patch.object(blocks, "BLOCK", block), np.errstate(all="ignore"):
        found, right = compare(a, b), truth(a, b)
    for name, value in right.items():
        expected = pytest.approx(value, rel=1e-12) if isinstance(value, float) else value
        assert getattr(found, name) == expected, name
    if "max_abs" not in right:
        assert found.max_abs is found.mean_abs is found.cosine is found.max_ulp is None


@quick
@given(pair=pairs(), block=st.sampled_from([1, 3, blocks.BLOCK]))
def test_close_is_what_assert_close_says(pair: tuple[torch.Tensor, torch.Tensor], block: int) -> None:
    a, b = pair
    if a.dtype.itemsize == b.dtype.itemsize == 1 and a.dtype.is_floating_point and b.dtype.is_floating_point:
        a, b = a.float(), b.float()
    try:
        torch.testing.assert_close(a, b, equal_nan=True, check_dtype=False, check_stride=False)
        is_close = True
    except AssertionError:
        is_close = False
    except RuntimeError:  # promotions of float8 that torch does not know
        return
    with mock.patch.object(blocks, "BLOCK", block):
        assert compare(a, b).is_close is is_close


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1.0, 1e30, 1e200])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_cosine_and_pearson_neither_overflow_nor_cancel(scale: float, offset: float) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(100_000) + offset
    y = x + 0.5 * rng.standard_normal(100_000)
    found = compare(torch.from_numpy(x * scale), torch.from_numpy(y * scale))
    assert found.pearson == pytest.approx(np.corrcoef(x - offset, y - offset)[0, 1], abs=1e-9)
    assert found.cosine == pytest.approx(np.dot(x, y) / np.linalg.norm(x) / np.linalg.norm(y), abs=1e-12)
    assert found.mean_abs == pytest.approx(np.abs(x - y).mean() * scale, rel=1e-9)


def test_a_side_that_does_not_vary_has_no_direction() -> None:
    found = compare(torch.full((1000,), 0.1), torch.linspace(0, 1, 1000))
    assert found.pearson is None and found.cosine is not None
    assert compare(torch.zeros(3), torch.ones(3)).cosine is None


def test_integers_beyond_float64_are_exact() -> None:
    found = compare(torch.tensor([2**62, -(2**63)]), torch.tensor([2**62 + 1, -(2**63)]))
    assert (found.differing, found.max_abs, found.is_close) == (1, 1.0, False)
    assert compare(torch.tensor([-(2**63)]), torch.tensor([2**63 - 1])).max_abs == 2.0**64


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_ulp_counts_the_steps_of_nextafter(dtype: Any, steps: int) -> None:
    x = np.array([1.0, -1.0, 0.0, 1e-7, 2.0, 65000.0], dtype=dtype)
    y = x
    for _ in range(steps):
        y = np.nextafter(y, dtype(np.inf))
    assert compare(torch.from_numpy(x), torch.from_numpy(y)).max_ulp == steps


def test_ulp_is_of_the_coarser_dtype_and_crosses_zero() -> None:
    assert compare(torch.tensor([1.0]), torch.tensor([1.0078125], dtype=torch.bfloat16)).max_ulp == 1
    tiny = torch.tensor([1e-45])
    assert compare(tiny, -tiny).max_ulp == 2
    big = torch.tensor([torch.finfo(torch.float64).max], dtype=torch.float64)
    assert compare(big, -big).max_ulp == 2 * (0x7FEFFFFFFFFFFFFF)
    assert compare(torch.tensor([1]), torch.tensor([2])).max_ulp is None


# --- words -------------------------------------------------------------------------------------------


def stepped(tensor: torch.Tensor, steps: int) -> torch.Tensor:
    for _ in range(steps):
        tensor = torch.nextafter(tensor, torch.full_like(tensor, 100))
    return tensor


def heads(width: int) -> torch.Tensor:
    return torch.arange(256).view(-1, width)[[1, 0, *range(2, 256 // width)]].reshape(-1)


def changed(index: Any, value: Any) -> torch.Tensor:
    tensor = W.clone()
    tensor[index] = value
    return tensor


TWO_ROWS = torch.arange(256)
TWO_ROWS[[3, 7]] = torch.tensor([7, 3])
ROTARY = torch.arange(256).view(4, 2, 32).transpose(1, 2).reshape(-1)
CUBE = seeded(4, 6, 8)

SAID: list[tuple[torch.Tensor, torch.Tensor, str]] = [
    (W, W.clone(), "equal to the bit"),
    (torch.zeros(3), -torch.zeros(3), "equal in value; zeros of the other sign"),
    (W, stepped(W, 1), "one ulp of f32 apart, everywhere"),
    (W, stepped(W, 5), "up to 5 ulp of f32 apart, everywhere: rounding"),
    (W, W.bfloat16().float(), "the second is the first after a round trip through bf16"),
    (W.half().float(), W, "the first is the second after a round trip through f16"),
    (W.double(), W.double().half().double(), "the second is the first after a round trip through f16"),
    (W * 1e5, (W * 1e5).half().float(), "overflowed"),
    (W, W.bfloat16(), "the second is the first rounded to bf16"),
    (W.bfloat16().float(), W.bfloat16(), "only the dtype differs, f32[256, 64] and bf16[256, 64]"),
    (W, W[heads(64)], "rows permuted in blocks of 64 (heads?): 0→1, 1→0"),
    (W.t(), W[heads(32)].t().contiguous(), "columns permuted in blocks of 32 (heads?): 0→1, 1→0"),
    (W.view(2, 2, 64, 64), W.view(2, 2, 64, 64)[:, [1, 0]], "slices along dimension 1 permuted: 0→1, 1→0"),
    (W, W[TWO_ROWS], "the same values, rows permuted: 3→7, 7→3"),
    (W, W[ROTARY], "rows interleaved in pairs or back within blocks of 64 (a rotary"),
    (W, W.roll(3, 0), "rows rolled by 3"),
    (W, W.flip(1), "the second is the first with its columns in reverse"),
    (W, W.t(), "shapes differ: f32[256, 64] and f32[64, 256]; the second is the first, transposed"),
    (W[:64], W[:64].t(), "the second is the first, transposed"),
    (W, W.t().bfloat16(), "the second is the first, transposed"),
    (CUBE, CUBE.permute(2, 0, 1), "with its dimensions in the order [2, 0, 1]"),
    (CUBE, CUBE.transpose(0, 1).reshape(4, 6, 8), "dimensions 0 and 1 swapped and read in the old shape"),
    (W, W.view(-1).flip(0).roll(7).view(64, 256).t().contiguous(), "the same values in another order"),
    (W, W.view(128, 128), "the same values in the same order, reshaped"),
    (W, W[:, :32], "shapes differ: f32[256, 64] and f32[256, 32]"),
    (W, W * 0.125, "the second is 0.125 times the first"),
    (W, W / 3, "the second is 0.333333 times the first"),
    (W, W * -2, "the second is -2 times the first"),
    (W, -W, "the second is the first with its sign flipped"),
    (W, W.abs(), "the same magnitudes, the sign flipped in"),
    (W, W + 2.5, "the second is the first plus 2.5"),
    (torch.arange(9), torch.arange(9) - 1, "the second is the first minus 1"),
    (W > 0, W <= 0, "inverted"),
    (
        W,
        changed((3, 5), NAN),
        "NaN in the second only at 1 of 16,384 elements, first at [3, 5]; the rest is equal",
    ),
    (
        changed((3, 5), INF),
        W * 1.01,
        "NaN or infinite in the first only at 1 of 16,384 elements; the rest differs",
    ),
    (W, changed(3, 0.0), "different, only in row 3"),
    (W, changed((slice(None), slice(8, 16)), 0.0), "different, only in columns 8–15"),
    (W, changed(3, stepped(W[3], 1)), "one ulp of f32 apart, only in row 3"),
    (
        CUBE,
        torch.cat([CUBE[:, :1] * CUBE[:, 1:2], CUBE[:, 1:]], dim=1),
        "different, only in dimension 1 at 0",
    ),
    (W, changed((4, 9), 7.0), "only element [4, 9] differs: "),
    (W, seeded(256, 64, seed=1), "different, everywhere"),
    (torch.tensor(1.0), torch.tensor(1.0001), "different, everywhere"),
    (torch.ones(0, 3), torch.ones(0, 3), "both are empty"),
    (W, W.to("meta"), "the second has no values to compare: no values on the meta device"),
]


@pytest.mark.parametrize(("a", "b", "said"), SAID, ids=[said[:40] for _, _, said in SAID])
def test_it_says_what_was_done(a: torch.Tensor, b: torch.Tensor, said: str) -> None:
    assert said in words(a, b)


@quick
@given(seed=st.integers(0, 2**20), steps=st.integers(1, 3), dtype=st.sampled_from(FLOATS[1:]))
def test_rounding_is_never_called_a_round_trip_nor_the_reverse(
    seed: int, steps: int, dtype: torch.dtype
) -> None:
    a = seeded(40, seed=seed)
    assert "ulp of f32 apart" in words(a, stepped(a, steps))
    if dtype != torch.float32:
        assert "round trip through" in words(a, a.to(dtype).float())


@quick
@given(order=st.permutations(range(6)), axis=st.integers(0, 1), block=st.sampled_from([1, 4]))
def test_any_permutation_is_found_and_its_arrows_lead_there(order: list[int], axis: int, block: int) -> None:
    a = seeded(24, 24)
    index = torch.arange(6 * block).view(6, block)[order].reshape(-1)
    index = torch.cat([index, torch.arange(6 * block, 24)])
    b = a.index_select(axis, index)
    said = words(a, b)
    if order == sorted(order):
        assert said == "equal to the bit"
        return
    assert ("rows", "columns")[axis] in said
    if "blocks of 4" in said or (block == 1 and "permuted: " in said):
        arrows = [pair.split("→") for pair in said.rpartition(": ")[2].split(", ") if "→" in pair]
        width = 4 if "blocks of 4" in said else 1
        for old, new in arrows:
            assert int(index[int(new) * width]) == int(old) * width


def test_odd_kinds_are_compared_or_get_a_reason() -> None:
    eye = torch.eye(4)
    assert words(eye.to_sparse(), eye) == "equal to the bit"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that they are deprecated
        quantized = torch.quantize_per_tensor(eye, 0.5, 0, torch.qint8)
    assert words(quantized, eye) == "equal to the bit"
    assert words(torch.randn(3, dtype=torch.cfloat).conj(), torch.ones(3, dtype=torch.cfloat)).startswith(
        "diff"
    )
    assert words(eye.expand(3, 4, 4), eye.repeat(3, 1, 1)) == "equal to the bit"
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert "nested" in words(nested, nested)
    for dtype in (torch.uint64, torch.complex128, torch.float8_e5m2, torch.bool):
        one = torch.ones(3, dtype=torch.float32).to(dtype)
        assert words(one, one.clone()) == "equal to the bit"


def test_nothing_is_disturbed_by_comparing() -> None:
    a = W.clone().requires_grad_()
    before, version = torch.get_rng_state(), a._version
    found = compare(a, W[heads(64)])
    assert found.differing and a._version == version and torch.equal(torch.get_rng_state(), before)
    assert torch.equal(a.detach(), W)


# --- the command -------------------------------------------------------------------------------------


def typed(*lines: str) -> list[Any]:
    """The answers to lines typed at a stop in the demo's model, the last ones only."""
    torch.manual_seed(0)
    model = TinyTransformer().eval()
    console = DebugConsole(model, commands=["break blocks.1.norm1", "continue", *lines], output=io.StringIO())
    messages: list[Any] = []
    console.session.listen(messages.append)
    with console:
        model(torch.randint(1, 64, (1, 5)))
    answers = [message.view for message in messages if message.line in lines]
    assert len(answers) == len(lines)
    return answers


def first_words(view: Any) -> str:
    head = view.views[0] if isinstance(view, Group) else view
    assert isinstance(head, Notice), view
    return head.text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("compare out out", "equal to the bit"),
        ("compare out, out * 2", "the second is 2 times the first"),
        ("compare out - 1 out", "the second is the first plus 1"),
        ("compare head.weight head.weight.t()", "transposed"),
        ("compare out[0, :2] out[0][:2]", "equal to the bit"),
        ("compare blocks.0.attn.qkv.weight blocks.1.attn.qkv.weight", "different, everywhere"),
        ("compare torch.ones(2, 3), torch.ones(2, 3)", "equal to the bit"),
        ("compare out", "needs two"),
        ("compare out nosuch.npy", "cannot read nosuch.npy"),
        ("compare out model", "out is one tensor and model is not"),
        ("compare 'a' 'b'", "no tensor in 'a'"),
    ],
)
def test_the_line_is_split_where_both_sides_make_sense(line: str, said: str) -> None:
    assert said in first_words(typed(line)[0])


def test_results_and_files_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    weights = TinyTransformer().state_dict()
    torch.save({"model": weights, "step": 3}, "all.pt")
    lines = [
        "print out",
        "print out + 0",
        "compare $1 $2",
        "save-tensor out out.npy",
        "compare out out.npy",
        'save-tensor out "my file.npy"',
        'compare out "my file.npy"',
        "save-tensor model model.safetensors",
        "compare head.weight model.safetensors:head.weight",
        "compare head.weight all.pt:model.head.weight",
        "compare head.weight model.safetensors:hed.weight",
        "compare head.weight model.safetensors",
    ]
    answers = dict(zip(lines, typed(*lines), strict=True))
    compared = [first_words(answers[line]) for line in lines if line.startswith("compare")]
    assert compared[:5] == ["equal to the bit"] * 5
    assert "no hed.weight in model.safetensors" in compared[5]
    assert "head.weight is one tensor and model.safetensors is not" in compared[6]


def test_a_file_that_would_run_code_is_refused_in_one_line(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)

    class Evil:
        def __reduce__(self) -> Any:
            return (Path("ran").touch, ())

    torch.save(Evil(), "evil.pt")
    np.save("evil.npy", np.array([Evil()], dtype=object), allow_pickle=True)
    for answer in typed("compare out evil.pt", "compare out evil.npy"):
        assert first_words(answer).startswith("cannot read evil")
    assert not Path("ran").exists()


def test_modules_are_compared_parameter_by_parameter_most_different_first() -> None:
    (table,) = typed("compare blocks.0 blocks.1")
    assert isinstance(table, Table)
    assert "2 of 10 tensors are equal" in table.note  # the norms
    gaps = [float(row[1]) for row in table.rows]
    assert len(gaps) == 8 and gaps == sorted(gaps, reverse=True)
    (other,) = typed("compare blocks.0 model")
    assert "no tensor of blocks.0 has the name" in first_words(other)


def test_containers_are_compared_leaf_by_leaf() -> None:
    (table,) = typed("compare {'a': out, 'b': inp} {'a': out, 'b': inp * 2, 'c': out}")
    assert [row[0] for row in table.rows] == ["b"] and "2 times" in table.rows[0][-1]
    assert "1 of 2 tensors are equal" in table.note and ": c" in table.note
    (table,) = typed("compare (out, inp) [out, inp]")
    assert "2 of 2 tensors are equal" in to_text(table)


def test_the_result_is_plain_data() -> None:
    assert compare(W, W) == compare(W, W) and isinstance(compare(W, W), Comparison)
