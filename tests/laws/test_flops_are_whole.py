"""`flops` counts attention in every form, lists what it cannot count, and lists nothing of our own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerstep.profile.flops import Flops, count_flops
from zoo import console_on


def counted(module: nn.Module, *args: Any, backward: bool = False) -> Flops:
    console, seen = console_on(module, [])
    with torch.set_grad_enabled(backward):
        found = count_flops(console.session, module, args=args, kwargs={}, backward=backward)
    assert not seen.bugs
    return found


class Attends(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.project = nn.Linear(64, 64)
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        q = self.project(x).view(2, 256, 4, 16).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q, **self.options)


PRODUCTS = 2 * 2 * (2 * 4 * 256 * 256 * 16)
PROJECTION = 2 * (2 * 256) * 64 * 64


@pytest.mark.parametrize(
    "options",
    [{}, {"is_causal": True}, {"attn_mask": torch.zeros(256, 256)}, {"dropout_p": 0.1}, {"scale": 0.5}],
    ids=str,
)
@pytest.mark.parametrize("backward", [False, True])
def test_scaled_dot_product_attention_counts(options: dict[str, Any], backward: bool) -> None:
    found = counted(Attends(**options), torch.randn(2, 256, 64), backward=backward)
    assert found.forward.total() == PRODUCTS + PROJECTION
    assert not any("attention" in name for _, name in found.uncounted)
    assert found.has_backward == backward


@pytest.mark.parametrize("kind", ["attention", "layer"])
def test_a_fused_kernel_counts_as_its_parts_do(kind: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 10, 16)
    layer = nn.TransformerEncoderLayer(16, 4, dim_feedforward=24, batch_first=True)
    module: Any = layer if kind == "layer" else nn.MultiheadAttention(16, 4, batch_first=True)
    args = (x,) if kind == "layer" else (x, x, x)
    fused, plain = counted(module.eval(), *args), counted(module.train(), *args)
    assert fused.forward.total() == plain.forward.total() > 0
    assert not fused.uncounted


def test_a_recurrent_layer_counts_in_one_kernel_as_in_many() -> None:
    module = nn.LSTM(8, 12, num_layers=2, batch_first=True).eval()
    expected = 2 * (3 * 5) * 4 * 12 * ((8 + 12) + (12 + 12))
    assert counted(module, torch.randn(3, 5, 8)).forward.total() == expected


def test_what_has_no_formula_is_listed() -> None:
    class Solves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.linalg.solve(x, x) + torch.cdist(x, x)

    found = counted(Solves(), torch.eye(4) * 3)
    names = " ".join(name for _, name in found.uncounted)
    assert "linalg" in names and "cdist" in names


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_each_call_of_generate_can_be_run_again(cache: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    start = torch.randint(3, 50, (1, 7))

    def generate() -> list[list[int]]:
        tokens = model.generate(
            start, max_new_tokens=3, do_sample=False, pad_token_id=0, cache_implementation=cache
        )
        return tokens.tolist()  # type: ignore[no-any-return]

    bare = generate()
    lines = ["break layers.1.self_attn", "continue", *["again", "ops", "flops", "continue"] * 3]
    console, seen = console_on(model, lines)
    with console:
        debugged = generate()
    assert debugged == bare
    assert seen.text.count("the same output again, bit for bit") == 3
    assert seen.text.count("a multiply and an add count as two") == 3
    assert "allclose" not in seen.text
    assert "cannot be rerun" not in seen.text
    assert "not counted" not in seen.text
    assert not seen.bugs


def test_the_outermost_call_of_generate_runs_again_at_each_moment() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=4, n_positions=32)
    model = transformers.GPT2LMHeadModel(config).eval()
    stops = ["break GPT2LMHeadModel enter", "break h.0.attn", "break h.1.mlp", "break GPT2LMHeadModel"]
    console, seen = console_on(model, [*stops, "continue", *["flops", "continue"] * 8])
    with console:
        model.generate(torch.randint(3, 50, (1, 5)), max_new_tokens=2, do_sample=False, pad_token_id=0)
    totals = [line.split()[1:3] for line in seen.text.splitlines() if line.startswith("all ")]
    assert len(totals) == 8
    assert totals[:4] == [totals[0]] * 4 and totals[4:] == [totals[4]] * 4
    assert totals[0] != totals[4]


@pytest.mark.long
def test_ten_thousand_modules_are_counted() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(10_000)))
    found = counted(model, torch.ones(1, 2), backward=True)
    assert found.forward.total() == 10_000 * 8
