"""Weights: every usual initialisation recognised, faults flagged, ties and dead rows found."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from layerstep import DebugConsole
from layerstep.layers.initialisation import SchemeMatch, judge
from layerstep.layers.weights import Weight, collect, histogram, measure_all
from layerstep.render.screen import to_text
from layerstep.views import Notice, Table

SEEDS = range(3)


def looked_at(module: nn.Module, *, budget: int = 1 << 24) -> list[Weight]:
    found = collect(module.named_modules())
    measure_all(found, budget=budget)
    return found


def verdict(module: nn.Module, name: str = "weight", *, depth: int = 0) -> SchemeMatch:
    found = looked_at(module)
    return judge(next(weight for weight in found if weight.names[0] == name), depth=depth)


def linear(init: Callable[[torch.Tensor], Any], rows: int = 96, columns: int = 160) -> nn.Module:
    module = nn.Linear(columns, rows)
    with torch.no_grad():
        init(module.weight)
    return module


# --- schemes -----------------------------------------------------------------------------------------

DEFAULT = "Kaiming uniform (a=√5), torch's default"

SCHEMES: list[tuple[str, float, Callable[[torch.Tensor], Any]]] = [
    ("Xavier uniform", math.sqrt(2 / 256), nn.init.xavier_uniform_),
    ("Xavier normal", math.sqrt(2 / 256), nn.init.xavier_normal_),
    ("Kaiming (He) uniform", math.sqrt(2 / 160), lambda w: nn.init.kaiming_uniform_(w, nonlinearity="relu")),
    ("Kaiming (He) normal", math.sqrt(2 / 160), lambda w: nn.init.kaiming_normal_(w, nonlinearity="relu")),
    (
        "Kaiming (He) fan_out normal",
        math.sqrt(2 / 96),
        lambda w: nn.init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu"),
    ),
    ("LeCun normal", math.sqrt(1 / 160), lambda w: nn.init.kaiming_normal_(w, nonlinearity="linear")),
    ("N(0, 0.02) of GPT-2", 0.02, lambda w: nn.init.normal_(w, std=0.02)),
    ("N(0, 0.02) cut at 2σ", 0.0176, lambda w: nn.init.trunc_normal_(w, std=0.02, a=-0.04, b=0.04)),
    (DEFAULT, math.sqrt(1 / 480), lambda w: w),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "std", "init"), SCHEMES, ids=[name for name, _, _ in SCHEMES])
def test_a_linear_layer_of_each_scheme_is_recognised(
    name: str, std: float, init: Callable[[torch.Tensor], Any], seed: int
) -> None:
    torch.manual_seed(seed)
    said = verdict(linear(init))
    assert not said.is_fault
    assert said.words.startswith(f"fits {name}"), said.words
    assert [scheme.std for scheme in said.schemes] == [pytest.approx(std, rel=1e-3)], said.words


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("module", "name", "said"),
    [
        (lambda: nn.Conv2d(16, 24, 3), "weight", f"fits {DEFAULT} (expected std 0.0481)"),
        (lambda: nn.Conv2d(16, 96, 3), "bias", f"fits {DEFAULT} (expected std 0.0481)"),
        (lambda: nn.Conv1d(16, 32, 5, groups=4), "weight", f"fits {DEFAULT} (expected std 0.129)"),
        (lambda: nn.Linear(64, 128), "bias", f"fits {DEFAULT} (expected std 0.0722)"),
        (lambda: nn.LSTM(20, 30), "weight_hh_l0", f"fits {DEFAULT} (expected std 0.105)"),
        (lambda: nn.LSTM(20, 30), "weight_ih_l0", f"fits {DEFAULT} (expected std 0.105)"),
        (lambda: nn.Embedding(80, 40), "weight", "fits N(0, 1), torch's default (expected std 1)"),
        (lambda: nn.MultiheadAttention(48, 4), "in_proj_weight", "fits Xavier uniform"),
        (lambda: nn.LayerNorm(40), "weight", "ones"),
        (lambda: nn.LayerNorm(40), "bias", "zeros"),
        (lambda: nn.BatchNorm2d(8), "weight", "ones"),
        (lambda: nn.Linear(4, 3), "weight", "too few to tell"),
    ],
)
def test_the_defaults_of_torch_are_recognised(
    module: Callable[[], nn.Module], name: str, said: str, seed: int
) -> None:
    torch.manual_seed(seed)
    assert verdict(module(), name).words.startswith(said)


@pytest.mark.parametrize("shape", [(64, 64), (40, 120), (120, 40)])
def test_orthogonal_weights_are_recognised_and_random_ones_are_not(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    assert verdict(linear(nn.init.orthogonal_, *shape)).words == "fits orthogonal"
    gain = verdict(linear(lambda w: nn.init.orthogonal_(w, gain=math.sqrt(2)), *shape))
    assert gain.words == "fits orthogonal, gain 1.41"
    assert "orthogonal" not in verdict(linear(lambda w: nn.init.normal_(w, std=0.05), *shape)).words
    wide = linear(lambda w: nn.init.normal_(w, std=0.02), 8, 60_000)
    assert "orthogonal" not in verdict(wide).words


def test_a_fresh_gpt2_is_named_and_its_embedding_is_tied() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=101, n_positions=16, n_embd=48, n_layer=3, n_head=4)
    found = {weight.names[0]: weight for weight in looked_at(GPT2LMHeadModel(config))}
    tied = found["transformer.wte.weight"]
    assert tied.names == ["transformer.wte.weight", "lm_head.weight"] and "lm_head.weight" not in found
    assert judge(tied).words.startswith("fits N(0, 0.02) of GPT-2")
    for layer in range(3):
        path = f"transformer.h.{layer}"
        assert judge(found[f"{path}.mlp.c_fc.weight"], depth=3).words.startswith("fits N(0, 0.02) of GPT-2")
        scaled = judge(found[f"{path}.mlp.c_proj.weight"], depth=3)
        assert scaled.words.startswith("fits N(0, 0.02/√(2·3)) of GPT-2's residual layers")
        assert judge(found[f"{path}.ln_1.weight"]).words == "ones"
    assert not any(judge(weight, depth=3).is_fault for weight in found.values())


def test_trained_weights_are_no_fault() -> None:
    torch.manual_seed(0)
    heavy = linear(lambda w: w.copy_(torch.distributions.StudentT(3.0).sample(w.shape) * 0.05))
    said = verdict(heavy)
    assert said.words.startswith("no usual scheme, as trained; nearest ") and not said.is_fault
    shifted = linear(lambda w: nn.init.xavier_normal_(w).add_(0.02))
    assert verdict(shifted).short == "trained"


# --- faults ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("init", "said"),
    [
        (nn.init.zeros_, "all zero: every unit starts alike"),
        (nn.init.ones_, "ones: every unit starts alike"),
        (lambda w: w.fill_(0.3), "constant 0.3: every unit starts alike"),
        (lambda w: w.view(-1)[7:9].fill_(math.nan), "2 NaN or Inf"),
        (lambda w: w.view(-1)[7].fill_(-math.inf), "1 NaN or Inf"),
        (lambda w: w.fill_(math.nan), "15,360 NaN or Inf"),
        (lambda w: nn.init.normal_(w, std=1.0), "He's 0.112: may explode"),
        (lambda w: nn.init.normal_(w, std=1e-4), "of He's 0.112: the signal fades"),
    ],
)
def test_faults_are_flagged(init: Callable[[torch.Tensor], Any], said: str) -> None:
    torch.manual_seed(0)
    found = verdict(linear(init))
    assert found.is_fault and said in found.words


def test_an_embedding_may_be_large_and_a_bias_zero() -> None:
    torch.manual_seed(0)
    assert not verdict(nn.Embedding(200, 500)).is_fault
    module = nn.Linear(100, 80)
    nn.init.zeros_(module.bias)
    assert verdict(module, "bias") == SchemeMatch("zeros", "zeros")


def test_one_nan_is_found_where_only_a_sample_is_looked_at() -> None:
    module = linear(lambda w: w.view(-1)[12_345].fill_(math.nan))
    weight = looked_at(module, budget=500)[0]
    assert weight.figures is not None and weight.figures.sampled and weight.figures.count <= 500
    assert weight.figures.bad == 1 and judge(weight).is_fault


# --- figures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
def test_figures_equal_float64_numpy(dtype: torch.dtype, scale: float) -> None:
    torch.manual_seed(0)
    module = linear(lambda w: nn.init.normal_(w, mean=0.5).mul_(scale), 300, 400).to(dtype)
    figures = looked_at(module)[0].figures
    weight: Any = module.weight
    values = weight.detach().double().numpy()
    centred = values - values.mean()
    assert figures is not None and figures.count == values.size
    assert figures.mean == pytest.approx(values.mean(), rel=1e-5)
    assert figures.std == pytest.approx(values.std(), rel=1e-5)
    assert figures.peak == pytest.approx(np.abs(values).max(), rel=1e-7)
    assert figures.kurtosis == pytest.approx((centred**4).mean() / values.var() ** 2, rel=1e-4)
    assert figures.zero == np.count_nonzero(values == 0)


@pytest.mark.parametrize("budget", [1 << 24, 1000])
@pytest.mark.parametrize(
    "layout", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels_last"]
)
def test_dead_rows_are_found_also_beside_a_sample(layout: torch.memory_format, budget: int) -> None:
    torch.manual_seed(0)
    module = nn.Conv2d(16, 40, 3)
    with torch.no_grad():
        module.weight[[3, 7]] = 0
        module.weight[11] = 1e-12
        module.weight[12] = 0
        module.weight[12, 5, 1, 2] = 0.1  # alive by one element
    found = looked_at(module.to(memory_format=layout), budget=budget)
    assert found[0].figures is not None and found[0].figures.dead == 3


def test_shared_memory_is_one_weight_of_several_names() -> None:
    model = nn.ModuleDict({"a": nn.Linear(9, 9), "b": nn.Linear(9, 9), "c": nn.Linear(9, 9, bias=False)})
    model["b"].weight = model["a"].weight
    model["c"].weight = nn.Parameter(model["a"].weight.detach().t())  # the same memory, read otherwise
    names = [weight.names for weight in looked_at(model)]
    assert names == [["a.weight", "b.weight", "c.weight"], ["a.bias"], ["b.bias"]]


def test_odd_parameters_get_a_line() -> None:
    model = nn.Module()
    model.lazy = nn.LazyLinear(3)
    model.meta = nn.Linear(3, 3, device="meta")
    model.empty = nn.Parameter(torch.ones(0, 4))
    model.whole = nn.Parameter(torch.arange(100), requires_grad=False)
    model.complex = nn.Parameter(torch.randn(10, 10, dtype=torch.cfloat))
    model.scalar = nn.Parameter(torch.tensor(0.5))
    model.bytes = nn.Parameter(torch.randn(20, 20).to(torch.float8_e4m3fn), requires_grad=False)
    said = {weight.names[0]: judge(weight).words for weight in looked_at(model)}
    assert said["lazy.weight"] == "not initialized yet"
    assert said["meta.weight"] == "no values on the meta device"
    assert said["empty"] == "empty"
    assert said["whole"] == "i64, not judged"
    assert said["complex"] == "c64, not judged"
    assert all(said.values())


def test_a_histogram_counts_a_sample() -> None:
    assert sum(histogram(torch.randn(1000))) == 1000
    assert histogram(torch.ones(10)) == [] == histogram(torch.ones(0))
    assert len(histogram(torch.tensor([1.0, 2.0, math.nan]), bins=5)) == 5


# --- the command -------------------------------------------------------------------------------------


class Stack(nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(depth))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def answer(model: nn.Module, line: str) -> Any:
    lines = ["break norm", "continue", line]
    console = DebugConsole(model.eval(), commands=lines, output=io.StringIO())
    messages: list[Any] = []
    console.session.listen(messages.append)
    with console:
        model(torch.ones(1, 2, dtype=torch.long))
    return [message.view for message in messages if message.line == line][-1]


def names(view: Any) -> list[str]:
    assert isinstance(view, Table), view
    return [row[0] for row in view.rows]


def test_the_whole_model_or_a_part_of_it() -> None:
    torch.manual_seed(0)
    model = Stack()
    every = answer(model, "weights")
    assert names(every)[0] == "embed.weight = head.weight" and len(names(every)) == 9
    assert "1,024 parameters in 9 tensors, all trainable, 4.1 kB, f32 on cpu" in every.note
    assert "1 tied" in every.note
    assert names(answer(model, "weights layers.1")) == ["layers.1.weight", "layers.1.bias"]
    assert names(answer(model, "weights head")) == ["embed.weight = head.weight"]
    assert names(answer(model, "weights layers.*.bias")) == [f"layers.{i}.bias" for i in range(3)]
    assert names(answer(model, "weights 2.bias")) == ["layers.2.bias"]
    assert names(answer(model, "weights type:LayerNorm")) == ["norm.weight", "norm.bias"]
    assert "expected std 0.144" in answer(model, "weights layers.1.weight").note


def test_sorting_and_faults() -> None:
    torch.manual_seed(0)
    model = Stack()
    with torch.no_grad():
        model.layers[1].weight.mul_(50)
        model.layers[2].weight.zero_()
    assert names(answer(model, "weights --sort std"))[0] == "layers.1.weight"
    assert names(answer(model, "weights layers.* --sort zero"))[0] == "layers.2.weight"
    text = to_text(answer(model, "weights"), width=120)
    assert "! layers.1.weight: std" in text and "! layers.2.weight: all zero" in text


def test_repeated_layers_fold_and_long_answers_are_cut() -> None:
    torch.manual_seed(0)
    model = Stack(depth=60)
    with torch.no_grad():
        model.layers[41].weight[0, 0] = math.nan
    view = answer(model, "weights")
    assert "layers.*.bias ×60" in names(view) and "layers.41.weight" in names(view)
    assert "layers.*.weight ×59" in names(view)
    assert len(names(view)) < 12
    long = Stack(depth=400)
    with torch.no_grad():
        for layer in long.layers:
            layer.weight.zero_()
    view = answer(long, "weights")
    assert len(view.rows) + len(view.note.splitlines()) <= 200
    assert "more rows" in view.note


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("weights nosuch", "no module 'nosuch'"),
        ("weights --sort", "--sort needs a value"),
        ("weights --sort colour", "--sort 'colour' is unknown"),
        ("weights head norm", "'norm' is too much"),
    ],
)
def test_mistakes_are_one_line(line: str, said: str) -> None:
    view = answer(Stack(), line)
    assert isinstance(view, Notice) and view.level == "error" and said in view.text


def test_looking_leaves_the_run_as_it_is() -> None:
    torch.manual_seed(0)
    model = Stack()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    versions = [parameter._version for parameter in model.parameters()]
    streams = torch.get_rng_state()
    answer(model, "weights")
    assert torch.equal(torch.get_rng_state(), streams)
    assert [parameter._version for parameter in model.parameters()] == versions
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
