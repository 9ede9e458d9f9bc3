"""Core files: what goes in comes out, and nothing of the run is touched."""

from __future__ import annotations

import collections
import io
import json
import os
import random
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

from layerstep import DebugConsole
from layerstep.corefile import read_core, write_core
from layerstep.corefile.container import read_file, write_file
from layerstep.corefile.rerun import CoreRerun, difference
from layerstep.corefile.restored_tensors import RestoredTensors
from layerstep.corefile.streams import Streams
from layerstep.corefile.tensors import TensorTable
from layerstep.corefile.values import NotInCore, ValueEncoder, decode, missing_in
from layerstep.errors import RecordingError, UserError


def through_file(value, path):
    """A value written to a file and read again."""
    table = TensorTable()
    encoded = ValueEncoder(table, lambda module: None).encode(value, "value")
    segments = table.segments()
    write_file(path, {"value": encoded, "tensors": table.entries}, segments)
    contents, raw = read_file(path)
    return decode(contents["value"], RestoredTensors(contents["tensors"], raw))


def coo(coalesced):
    indices, values = [[0, 1, 1], [2, 0, 0]], [1.0, 2.0, 3.0]
    tensor = torch.sparse_coo_tensor(indices, values, (2, 3), check_invariants=True)
    return tensor.coalesce() if coalesced else tensor


BASE = torch.arange(24.0)

ODD = {
    "plain": torch.randn(3, 4),
    "zero dimensions": torch.tensor(3.5),
    "empty": torch.empty(0, 3),
    "bool": torch.tensor([True, False]),
    "complex": torch.randn(2, 3, dtype=torch.complex64),
    "conjugate": torch.randn(2, dtype=torch.complex128).conj(),
    "negated view": torch.randn(2, dtype=torch.complex64).conj().imag,
    "bf16": torch.randn(5).bfloat16(),
    "f8": torch.randn(8).to(torch.float8_e4m3fn),
    "u16": torch.tensor([1, 65535], dtype=torch.uint16),
    "transposed": torch.randn(3, 4).T,
    "strided": BASE[3::2],
    "offset": BASE[7:],
    "nonfinite": torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0]),
    "channels last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("tensor", ODD.values(), ids=ODD)
def test_every_kind_of_tensor_survives_to_the_bit(tensor, tmp_path):
    found = through_file(tensor, tmp_path / "a.lscore")
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    assert difference(tensor, found) == ""
    if not tensor.is_conj() and not tensor.is_neg():
        assert found.stride() == tensor.stride()


@pytest.mark.parametrize("coalesced", [True, False])
def test_sparse_tensors(coalesced, tmp_path):
    found = through_file(coo(coalesced), tmp_path / "a.lscore")
    assert found.layout is torch.sparse_coo and found.is_coalesced() is coalesced
    assert torch.equal(found._values(), coo(coalesced)._values())
    assert torch.equal(found._indices(), coo(coalesced)._indices())


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", ["to_sparse_csr", "to_sparse_csc"])
def test_compressed_sparse_tensors(name, tmp_path):
    tensor = getattr(torch.eye(3) * 2, name)()
    found = through_file(tensor, tmp_path / "a.lscore")
    assert found.layout is tensor.layout
    assert torch.equal(found.to_dense(), tensor.to_dense())


@pytest.mark.filterwarnings("ignore")
def test_quantized_tensors(tmp_path):
    values = torch.randn(4, 3)
    one = torch.quantize_per_tensor(values, 0.1, 3, torch.qint8)
    scales, zeros = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0, 1, 2, 3])
    many = torch.quantize_per_channel(values, scales, zeros, 0, torch.quint8)
    for tensor in (one, many):
        found = through_file(tensor, tmp_path / "a.lscore")
        assert found.dtype == tensor.dtype and found.qscheme() == tensor.qscheme()
        assert torch.equal(found.int_repr(), tensor.int_repr())
        assert torch.equal(found.dequantize(), tensor.dequantize())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors(layout, tmp_path):
    parts = [torch.randn(2, 3), torch.randn(4, 3)]
    found = through_file(torch.nested.nested_tensor(parts, layout=layout), tmp_path / "a.lscore")
    assert found.is_nested and found.layout is layout
    assert all(map(torch.equal, found.unbind(), parts))


def test_what_is_expanded_takes_no_more_than_it_did(tmp_path):
    tensor = torch.randn(3, 1).expand(3, 100_000)
    found = through_file(tensor, tmp_path / "a.lscore")
    assert torch.equal(found, tensor) and found.stride() == (1, 0)
    assert (tmp_path / "a.lscore").stat().st_size < 2000


def test_a_view_takes_no_more_than_it_shows(tmp_path):
    whole = torch.randn(1_000_000)
    assert torch.equal(through_file(whole[10:20], tmp_path / "a.lscore"), whole[10:20])
    assert (tmp_path / "a.lscore").stat().st_size < 2000


def test_what_shares_memory_shares_it_in_the_file(tmp_path):
    whole = torch.randn(100, 100)
    one, turned, part, same = through_file((whole, whole.T, whole[3], whole), tmp_path / "a.lscore")
    assert same is one
    assert turned.untyped_storage().data_ptr() == one.untyped_storage().data_ptr()
    one[3, 0] = 7
    assert turned[0, 3] == part[0] == 7
    assert (tmp_path / "a.lscore").stat().st_size < 42_000


def test_views_of_another_dtype(tmp_path):
    base = torch.arange(64, dtype=torch.uint8)
    parts = (base[3:30], base[8:40].view(torch.float64), base[4:8].view(torch.int16))
    found = through_file(parts, tmp_path / "a.lscore")
    assert all(difference(part, other) == "" for part, other in zip(parts, found, strict=True))


def test_meta_freed_and_lazy_tensors_keep_what_is_known(tmp_path):
    freed = torch.randn(4)
    freed.untyped_storage().resize_(0)
    meta, gone, lazy = through_file(
        (torch.empty(3, 4, device="meta"), freed, nn.LazyLinear(3).weight), tmp_path / "a.lscore"
    )
    assert meta.is_meta and meta.shape == (3, 4) and missing_in(meta) == []
    assert gone.shape == (4,) and missing_in(gone) == ["it (tensor)"]
    assert isinstance(lazy, nn.UninitializedParameter)


class Wrapping(torch.Tensor):
    """A tensor that keeps its values in another."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)


class Named(torch.Tensor):
    """A tensor that is only called otherwise."""


def test_subclasses(tmp_path):
    named, wrapping = through_file(
        (torch.ones(3).as_subclass(Named), Wrapping(torch.ones(2, 3))), tmp_path / "a.lscore"
    )
    assert torch.equal(named, torch.ones(3))
    assert wrapping.shape == (2, 3) and missing_in(wrapping) == ["it (tensor)"]


Pair = collections.namedtuple("Pair", "left right")

VALUES = [
    None,
    True,
    -(10**30),
    0.1,
    float("inf"),
    3 - 2j,
    "text",
    b"\x00\xff",
    [1, [2, (3, {})]],
    {"a": 1, 2: (3,), (4, 5): None},
    {1, 2},
    frozenset("a"),
    slice(1, None, 2),
    range(3, 9, 2),
    ...,
    torch.Size([2, 3]),
    torch.float16,
    torch.device("cuda:1"),
    collections.OrderedDict(b=1, a=2),
    np.float32(0.1),
    np.int64(7),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_survive(value, tmp_path):
    found = through_file(value, tmp_path / "a.lscore")
    assert found == value and type(found) is type(value)


def test_containers_with_tensors_in_them(tmp_path):
    value = {"pair": Pair(torch.ones(2), [torch.zeros(3)]), "array": np.arange(4).reshape(2, 2)}
    found = through_file(value, tmp_path / "a.lscore")
    assert found["pair"]._fields == Pair._fields and torch.equal(found["pair"].left, torch.ones(2))
    assert torch.equal(found["pair"].right[0], torch.zeros(3))
    assert (found["array"] == value["array"]).all()


def test_what_cannot_be_stored_is_described(tmp_path):
    found = through_file({"a": [object(), 1]}, tmp_path / "a.lscore")
    assert isinstance(found["a"][0], NotInCore) and repr(found["a"][0]).startswith("<object object")
    assert missing_in(found) == ["a.0 (object)"]
    endless: list[object] = []
    endless.append(endless)
    assert missing_in(through_file(endless, tmp_path / "a.lscore"))


def test_no_path_below_the_users_directory_goes_into_a_file(tmp_path):
    home = os.path.expanduser("~")
    found = through_file([f"{home}/secret", Path(home) / "x"], tmp_path / "a.lscore")
    assert home.encode() not in (tmp_path / "a.lscore").read_bytes()
    assert len(missing_in(found)) == 2, "a changed string is not the string"


def test_the_file_is_plain_safetensors(tmp_path):
    through_file({"w": torch.ones(2, 3)}, tmp_path / "a.lscore")
    with safe_open(tmp_path / "a.lscore", framework="pt") as file:
        assert file.metadata()["format"] == "layerstep-core"
        assert torch.equal(file.get_tensor("value.w"), torch.ones(2, 3))


# --- random streams ---


def draw(count):
    numbers = torch.randint(0, 100, (count,)).tolist()
    return numbers, [random.random() for _ in range(count // 3)], np.random.rand(count // 2).tolist()


@pytest.mark.parametrize("before", [0, 1, 623, 624, 1500])
@pytest.mark.parametrize("count", [0, 1, 624, 5000])
def test_streams_can_be_turned_back(before, count):
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    draw(before)
    first, drawn = Streams(), draw(count)
    then = Streams()
    draw(count)
    turned = then.before(then, Streams())
    assert turned is not None and turned.same_as(first)
    turned.restore()
    assert draw(count) == drawn
    assert Streams().same_as(then)
    if count:
        assert not turned.same_as(then)


# --- a stop ---


class Block(nn.Module):
    def __init__(self, *, roots: bool = False) -> None:
        super().__init__()
        self.roots = roots
        self.fc1 = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.5)
        self.fc2 = nn.Linear(16, 8)
        self.eps = 0.25

    def forward(self, x, *, scale=1.0):
        hidden = self.drop(torch.relu(self.norm(self.fc1(x))))
        x = x + self.fc2(hidden) * scale
        return x.sqrt() if self.roots else x  # of what is negative there is none: nan


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block(roots=True)])
        self.embed = nn.Linear(8, 8, bias=False)
        self.head = nn.Linear(8, 8, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.head(x)


def net():
    torch.manual_seed(0)
    return Net()


def run(*lines, model=None, autocast=False):
    """The lines typed in a run of the model; what was answered."""
    model = model or net()
    console = DebugConsole(model, commands=[*lines], output=io.StringIO())
    messages = []
    console.session.listen(messages.append)
    torch.manual_seed(5)
    batch = torch.randn(4, 8)
    with console, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        model(batch)
    return messages


def dumped(path, *lines, **options):
    """The file that `dump` writes after these lines."""
    messages = run(*lines, f"dump {path}", **options)
    assert messages[-1].line.startswith("dump"), messages[-1]
    return read_core(path)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "stop.lscore"


def test_a_stop_comes_back(path):
    core = dumped(path, "break blocks.1", "continue")
    assert [call.path for call in core.stack] == ["blocks.1", "Net"]
    assert [type(call.module).__name__ for call in core.stack] == ["Block", "Net"]
    stored, model = core.roots[0][0], net()
    assert [name for name, _ in stored.named_modules()] == [name for name, _ in model.named_modules()]
    assert str(stored.blocks[1]) == str(model.blocks[1])
    assert {n: p.shape for n, p in stored.named_parameters()} == {
        n: p.shape for n, p in model.named_parameters()
    }
    assert stored.head.weight is stored.embed.weight, "tied"
    assert torch.equal(stored.blocks[1].fc1.weight, model.blocks[1].fc1.weight)
    assert stored.blocks[0].fc1.weight.is_meta, "only the state of the selected module is in the file"
    assert stored.blocks[1].eps == 0.25
    assert core.selected.kwargs == {"scale": 0.5} and core.missing == []
    with pytest.raises(UserError, match="without its code"):
        stored(torch.ones(1, 8))


def test_an_outer_frame_takes_its_whole_state(path):
    core = dumped(path, "break blocks.1.fc1", "continue", "up 2")
    assert core.selected.path == "Net"
    assert not any(parameter.is_meta for parameter in core.roots[0][0].parameters())


def test_looking_changes_nothing(path):
    bare = net()
    torch.manual_seed(5)
    want = bare(torch.randn(4, 8))
    after = torch.get_rng_state()
    model = net()
    outputs = []
    handle = model.register_forward_hook(lambda module, args, output: outputs.append(output))
    run("break blocks.1 enter", "continue", "dump", f"dump {path}", "again", "continue", model=model)
    handle.remove()
    assert difference(want, outputs[-1]) == ""
    assert torch.equal(torch.get_rng_state(), after)
    assert all(map(torch.equal, bare.state_dict().values(), model.state_dict().values()))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    "stop", ["break blocks.1", "break blocks.1 enter", "break blocks.0", "break blocks.1.drop"]
)
def test_the_module_runs_again_bit_for_bit(path, stop, autocast):
    core = dumped(path, stop, "continue", autocast=autocast)
    assert core.contents["modes"]["autocast"] == ({"cpu": "bfloat16"} if autocast else {})
    torch.manual_seed(1234)
    again = CoreRerun(core, Net())
    result = again.run({}, silently=_nothing, raised=lambda error: None)
    assert result.error is None and result.notes == ()
    assert result.is_same is (None if "enter" in stop else True), result.message
    assert result.output.isnan().any() == ("1" in stop and "drop" not in stop)
    assert not result.output.isnan().all(), "or dropout would not be seen"
    assert difference(dropped_otherwise(core), result.output), "without its numbers it would be another"


def _nothing():
    import contextlib

    return contextlib.nullcontext()


def dropped_otherwise(core):
    """The output with other random numbers."""
    again = CoreRerun(core, Net())
    core.streams.state.torch = torch.Generator().manual_seed(99).get_state()
    return again.run({}, silently=_nothing, raised=lambda error: None).output


def test_an_outer_module_runs_again_from_its_beginning(path):
    """The run stands inside of it, after some of its numbers were drawn."""
    core = dumped(path, "break blocks.1.drop", "continue", "up 2")
    again = CoreRerun(core, Net())
    seen = []
    again.model.blocks[1].drop.register_forward_hook(lambda m, a, output: seen.append(output))
    result = again.run({}, silently=_nothing, raised=lambda error: None)
    assert result.is_same is None and result.notes == ()
    assert difference(core.stack[0].output, seen[-1]) == ""


def test_another_code_is_told(path):
    core = dumped(path, "break blocks.1", "continue")
    with pytest.raises(UserError, match=r"the model has no blocks\.1"):
        CoreRerun(core, nn.Linear(2, 2))
    other = Net()
    other.blocks[1].fc1 = nn.Linear(8, 12)
    with pytest.raises(UserError, match=r"fc1.weight is \[16, 8\] in the file and \[12, 8\] in the code"):
        CoreRerun(core, other)
    other.blocks[1].fc1 = nn.Linear(8, 16, bias=False)
    with pytest.raises(UserError, match=r"fc1.bias is None in the code"):
        CoreRerun(core, other)
    other = Net()
    other.blocks[1].eps = 0.5
    assert CoreRerun(core, other).notes == ["eps is 0.5 in the code, and was 0.25"]


class WithHelper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = Takes()

    def forward(self, x):
        return self.part(x, helper=object())


class Takes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x, *, helper):
        return self.fc(x)


def test_an_argument_that_is_no_data_is_named(path):
    core = dumped(path, "break part", "continue", model=WithHelper())
    assert core.missing == ["helper (object)"]
    result = CoreRerun(core, WithHelper()).run({"helper": None}, silently=_nothing, raised=lambda error: None)
    assert result.is_same is True


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)))

    def forward(self, x):
        return self.part(x)


class Lean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(8, 8, batch_first=True, dropout=0.5, num_layers=2)

    def forward(self, x):
        return self.rnn(x[None])[0]


@pytest.mark.parametrize(("kind", "where"), [(Scripted, "part"), (Lean, "rnn")])
def test_modules_that_hold_their_weights_elsewhere_too(path, kind, where):
    core = dumped(path, f"break {where}", "continue", model=kind())
    result = CoreRerun(core, kind()).run({}, silently=_nothing, raised=lambda error: None)
    assert result.is_same is True, result.message


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_modes_are_those_of_the_run(path, mode):
    model, again_in = net(), []
    console = DebugConsole(
        model, commands=["break blocks.1", "continue", f"dump {path}"], output=io.StringIO()
    )
    with console, mode():
        model(torch.randn(4, 8))
    core = read_core(path)
    other = Net()
    other.blocks[1].register_forward_hook(
        lambda *_: again_in.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
    )
    result = CoreRerun(core, other).run({}, silently=_nothing, raised=lambda error: None)
    assert result.is_same is True
    assert set(again_in) == {(False, mode is torch.inference_mode)}
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def test_a_stop_in_the_backward_pass(path):
    model = net()
    lines = ["break blocks.1 backward", "continue", f"dump {path}"]
    console = DebugConsole(model, commands=lines, output=io.StringIO())
    with console:
        model(torch.rand(4, 8)).nansum().backward()
    core = read_core(path)
    assert core.selected.call is not None and core.selected.state == "backward done"
    assert core.selected.call.grad_out[0].shape == (4, 8)
    assert core.selected.call.made_at[0].endswith("/test_core.py")


def test_in_a_run_again_runs_it_beside(path):
    told = [m.view for m in run("break blocks.1.fc1", "continue", "again") if m.line == "again"]
    assert told[0].text == "blocks.1.fc1 gave the same output again, bit for bit"
    told = [m.view for m in run("break blocks.1.drop", "continue", "again") if m.line == "again"]
    assert "gave another output" in told[0].text and told[0].hint == "dropout was left out"


# --- how much ---


def test_above_the_budget_the_batch_goes_first_then_the_state(path):
    whole = dumped(path, "break blocks.1.fc1", "continue")
    assert whole.contents["left_out"] == [] and whole.missing == []

    def left_out(most):
        messages = run("break blocks.1.fc1", "continue", f"dump {path} --max {most}")
        return read_core(path), {label for label, _ in messages[-1].view.items}

    entries = whole.contents["tensors"]
    streams = 5056
    state = sum(4 * t.numel() for t in whole.selected.module.parameters())
    own = sum(4 * t.numel() for t in (whole.selected.args[0], whole.selected.output))
    core, labels = left_out(streams + own + state)
    assert core.missing == [] and "left out" in labels
    assert any(part.startswith("batch") for part in core.contents["left_out"])
    assert core.stack[-1].args[0].is_meta and core.stack[-1].args[0].shape == (4, 8)
    core, _ = left_out(streams + own)
    assert any(part.startswith("state of blocks.1.fc1") for part in core.contents["left_out"])
    assert core.missing == ["weight (weight)", "bias (weight)"]
    assert torch.equal(core.selected.args[0], whole.selected.args[0])
    assert len(core.contents["tensors"]) == len(entries), "shapes are all there"


def test_a_tensor_that_is_in_the_file_already_takes_nothing(path):
    core = dumped(path, "break blocks.0 enter", "continue", "step", "step", "step")
    kept = [module for module, _ in core.calls]
    assert len(kept) >= 2
    assert path.stat().st_size < 60_000


@pytest.mark.parametrize("text", ["many", "-3", "10TB"])
def test_a_wrong_budget(path, text):
    view = run("break blocks.1", "continue", f"dump {path} --max {text}")[-1].view
    assert view.level == "error" and "is no number of bytes" in view.text
    assert not path.exists()


# --- writing ---


def test_a_file_is_replaced_and_a_suffix_added(tmp_path):
    path = tmp_path / "stop.lscore"
    path.write_text("old")
    messages = run("break blocks.1", "continue", f"dump {tmp_path / 'stop'}")
    assert f"written to {path}" in messages[-1].view.title[0].text
    assert read_core(path).selected.path == "blocks.1"
    assert [file.name for file in tmp_path.iterdir()] == ["stop.lscore"]


def test_what_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    for file, said in (("nosuch/a.lscore", "No such file"), ("a.txt", ".txt is not a core file")):
        view = run("break blocks.1", "continue", f"dump {tmp_path / file}")[-1].view
        assert view.level == "error" and said in f"{view.text}; {view.hint}"
    path = tmp_path / "full.lscore"
    path.write_text("old")

    def full(self):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("layerstep.corefile.tensors.Segment.read", full)
    view = run("break blocks.1", "continue", f"dump {path}")[-1].view
    assert view.hint == "No space left on device" and "cannot write" in view.text
    assert [file.name for file in tmp_path.iterdir()] == ["full.lscore"] and path.read_text() == "old"


def test_a_directory_gets_a_file_of_its_own(tmp_path):
    run("break blocks.1", "continue", f"dump {tmp_path}")
    assert [file.name for file in tmp_path.iterdir()] == [f"core-blocks.1-{os.getpid()}.lscore"]


def test_before_a_stop_there_is_nothing_to_write(path):
    console = DebugConsole(net(), output=io.StringIO())
    with pytest.raises(UserError, match="nothing has stopped yet"):
        write_core(console.session, path)


# --- reading what is no such file ---


def is_turned_down(path):
    with pytest.raises(RecordingError) as caught:
        read_core(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


def test_truncated_at_any_length(path):
    dumped(path, "break blocks.1", "continue")
    data = path.read_bytes()
    for length in {0, 1, 7, 8, 9, 100, *range(0, len(data), 997), len(data) - 1}:
        path.write_bytes(data[:length])
        is_turned_down(path)


def test_foreign_files(tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "a.lscore"
    save_file({"w": torch.ones(2)}, path)
    assert "is not a core file" in is_turned_down(path)
    rng = random.Random(0)
    for length in (1, 8, 100, 10_000):
        path.write_bytes(rng.randbytes(length))
        is_turned_down(path)
    torch.save({"w": 1}, path)
    is_turned_down(path)


def rewritten(path, change):
    """The file with its contents changed."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    core = json.loads(header["__metadata__"]["core"])
    change(header["__metadata__"], core)
    if "core" in header["__metadata__"]:
        header["__metadata__"]["core"] = json.dumps(core)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def test_a_newer_version(path):
    dumped(path, "break blocks.1", "continue")
    rewritten(path, lambda told, core: told.update(version="2"))
    assert "of version 2, and this layerstep reads 1" in is_turned_down(path)


def test_a_damaged_description(path):
    dumped(path, "break blocks.1", "continue")
    data = path.read_bytes()

    def damage(change):
        path.write_bytes(data)
        rewritten(path, change)
        return is_turned_down(path)

    keys = list(read_file(path)[0])
    for key in keys:
        if key not in ("history", "calls", "recordings"):
            assert "damaged" in damage(lambda told, core, key=key: core.pop(key)), key
    damage(lambda told, core: told.pop("core"))
    damage(lambda told, core: core["stop"].update(selected=9))
    damage(lambda told, core: core["tensors"][0].update(shape=[10**12]))
    damage(lambda told, core: core["tensors"][0].update(at=-8))
    damage(lambda told, core: core["tensors"][0].update(segment="nosuch"))
    damage(lambda told, core: core["tensors"][0].update(dtype="load"))
    damage(lambda told, core: core["random"]["numpy"].__setitem__(1, [1, 2]))
    damage(lambda told, core: core["stack"][0]["caller"].update(line=10**9))
    site = {"x=print('run!')": 1}
    assert "variable" in damage(lambda told, core: core["stack"][0]["caller"].update(locals=site))
