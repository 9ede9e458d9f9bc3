"""Reimplementations with one planted difference each: it is named at the exact layer."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layerstep import Lockstep, lockstep
from layerstep.lockstepping.result import Site
from reimplemented import bert, gpt2, llama, mine_from_bert, mine_from_gpt2, mine_from_llama

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

gpt2, llama, bert = functools.cache(gpt2), functools.cache(llama), functools.cache(bert)


def ids() -> Tensor:
    return torch.randint(0, 100, (2, 12), generator=torch.Generator().manual_seed(5))


def site(found: Lockstep) -> Site:
    assert found.at is not None, found
    return found.at


ATTENTION = ("transformer.h.1.attn", "layers.1.attention")
ACTIVATION = ("transformer.h.1.mlp.act", "layers.1.ffn.act")
BLOCK = ("transformer.h.1", "layers.1")


@pytest.mark.parametrize(
    "fault, where",
    [
        ("scale", ATTENTION),
        ("causal", ATTENTION),
        ("head split", ATTENTION),
        ("softmax axis", ATTENTION),
        ("erf", ACTIVATION),
        ("relu", ACTIVATION),
        ("quick", ACTIVATION),
        ("eps", ("transformer.h.1.ln_2", "layers.1.norm_m")),
        ("tiny eps", ("transformer.h.1.ln_1", "layers.1.norm_a")),
        ("dropout", ("transformer.h.1.mlp.dropout", "layers.1.ffn.drop")),
        ("norm order", BLOCK),
        ("norm after", BLOCK),
        ("no residual", BLOCK),
        ("residual scale", BLOCK),
        ("weight", ("transformer.h.1.mlp.c_fc", "layers.1.ffn.up")),
        ("key weight", ("transformer.h.1.attn.c_attn", "layers.1.attention.k")),
        ("bias", ("transformer.h.1.mlp.c_proj", "layers.1.ffn.down")),
        ("not transposed", ("transformer.h.1.attn.c_proj", "layers.1.attention.proj")),
        ("position", ("transformer", "")),
        ("embedding scale", ("transformer", "")),
        ("no final norm", ("", "")),
    ],
)
def test_a_wrong_gpt2(fault: str, where: tuple[str, str]) -> None:
    found = site(lockstep(gpt2(), mine_from_gpt2(gpt2(), fault), ids()))
    assert (found.a, found.b) == where


@pytest.mark.parametrize(
    "fault, shows_at",
    [
        ("position", ("transformer.wpe", "pos")),
        ("embedding scale", ("transformer.h.0", "layers.0")),
        ("no final norm", ("lm_head", "out")),
        ("scale", ("transformer.h.1.attn.c_proj", "layers.1.attention.proj")),
    ],
)
def test_a_difference_between_layers_is_told_by_who_gets_it(fault: str, shows_at: tuple[str, str]) -> None:
    assert site(lockstep(gpt2(), mine_from_gpt2(gpt2(), fault), ids())).shows_at == shows_at


def test_code_without_a_module_is_named_by_what_is_around_it() -> None:
    found = site(lockstep(gpt2(), mine_from_gpt2(gpt2(), "erf", inline=True), ids()))
    assert (found.a, found.b) == ("transformer.h.1.mlp", "layers.1.ffn")
    assert found.after == ("transformer.h.1.mlp.c_fc", "layers.1.ffn.up")
    assert found.between == ("transformer.h.1.mlp.act (NewGELUActivation)",)


@pytest.mark.parametrize(
    "fault, where",
    [
        ("rope base", ("model.layers.1.self_attn", "stack.1.att")),
        ("rope pairs", ("model.layers.1.self_attn", "stack.1.att")),
        ("groups", ("model.layers.1.self_attn", "stack.1.att")),
        ("gate act", ("model.layers.1.mlp", "stack.1.mlp")),
        ("gate swapped", ("model.layers.1.mlp", "stack.1.mlp")),
        ("rms eps", ("model.layers.1.input_layernorm", "stack.1.n1")),
    ],
)
def test_a_wrong_llama_with_merged_weights(fault: str, where: tuple[str, str]) -> None:
    found = site(lockstep(llama(), mine_from_llama(llama(), fault), ids()))
    assert (found.a, found.b) == where


@pytest.mark.parametrize(
    "fault, where",
    [
        ("eps", ("encoder.layer.1.attention.output.LayerNorm", "body.1.n1")),
        ("relu", ("encoder.layer.1", "body.1")),
        ("no residual", ("encoder.layer.1.output", "body.1")),
        ("token type", ("embeddings", "")),
        ("last token", ("", "")),
    ],
)
def test_a_wrong_bert_whose_blocks_are_cut_otherwise(fault: str, where: tuple[str, str]) -> None:
    found = site(lockstep(bert(), mine_from_bert(bert(), fault), ids()))
    assert (found.a, found.b) == where


def test_settings_and_weights_say_why() -> None:
    eps = site(lockstep(gpt2(), mine_from_gpt2(gpt2(), "eps"), ids()))
    assert eps.settings == ("eps 1e-05 and 0.001",)
    assert (
        "the second is in training mode"
        in site(lockstep(gpt2(), mine_from_gpt2(gpt2(), "dropout"), ids())).settings
    )
    (wrong,) = lockstep(gpt2(), mine_from_gpt2(gpt2(), "weight"), ids()).weights
    text = str(wrong)
    assert text.startswith("one value of 4,096 differs in transformer.h.1.mlp.c_fc.weight | layers.1.ffn.up")
    assert "only element [7, 5] differs" in text
    (wrong,) = lockstep(gpt2(), mine_from_gpt2(gpt2(), "key weight"), ids()).weights
    assert (wrong.b, wrong.differing) == ("layers.1.attention.k.weight", 1)


# --- convolutions ---


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(Block(8), Block(8))
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.blocks(torch.relu(self.bn(self.stem(x))))).flatten(1))


def net() -> Net:
    torch.manual_seed(3)
    made = Net()
    for part in made.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
            nn.init.uniform_(part.weight, 0.5, 2)
            nn.init.normal_(part.bias)
    return made.eval()


def image() -> Tensor:
    return torch.randn(2, 3, 10, 10, generator=torch.Generator().manual_seed(1))


def _no_padding(b: Any) -> None:
    b.stem.padding = (0, 0)


def _no_padding_inside(b: Any) -> None:
    b.blocks[1].conv1.padding = (0, 0)  # the residual sum then raises


def _reflect(b: Any) -> None:
    old = b.blocks[1].conv1
    b.blocks[1].conv1 = nn.Conv2d(8, 8, 3, padding=1, bias=False, padding_mode="reflect")
    b.blocks[1].conv1.load_state_dict(old.state_dict())


def _statistics(b: Any) -> None:
    b.blocks[0].bn2.running_mean[1] += 0.1


def _training(b: Any) -> None:
    b.blocks[0].bn2.train()


def _max_pool(b: Any) -> None:
    b.pool = nn.AdaptiveMaxPool2d(1)


@pytest.mark.parametrize(
    "plant, where",
    [
        (_no_padding, "stem"),
        (_no_padding_inside, "blocks.1.conv1"),
        (_reflect, "blocks.1.conv1"),
        (_statistics, "blocks.0.bn2"),
        (_training, "blocks.0.bn2"),
        (_max_pool, "pool"),
    ],
)
def test_a_wrong_convolution_net(plant: Any, where: str) -> None:
    other = copy.deepcopy(net())
    plant(other)
    assert site(lockstep(net(), other, image())).a == where


def test_what_raises_is_named_where_it_raises() -> None:
    other = copy.deepcopy(net())
    other.blocks[1].conv2 = nn.Conv2d(4, 8, 3, padding=1, bias=False)
    found = site(lockstep(net(), other, image()))
    assert found.b == "blocks.1"
    assert "b raised RuntimeError" in found.words and "blocks.1.conv2" in found.words


class OwnAttention(nn.Module):
    """`nn.MultiheadAttention` by hand."""

    def __init__(self, like: nn.MultiheadAttention, scale: float) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))
        self.scale = scale
        with torch.no_grad():
            weights, biases = like.in_proj_weight.chunk(3), like.in_proj_bias.chunk(3)
            for layer, weight, bias in zip((self.q, self.k, self.v), weights, biases, strict=True):
                layer.weight.copy_(weight)
                layer.bias.copy_(bias)
            self.o.load_state_dict(like.out_proj.state_dict())

    def forward(self, x: Tensor, *_: Tensor) -> tuple[Tensor, None]:
        q, k, v = (f(x).view(2, 7, 4, 4).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = (q @ k.transpose(-1, -2) * self.scale).softmax(-1) @ v
        return self.o(mixed.transpose(1, 2).reshape(2, 7, 16)), None


class Around(nn.Module):
    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.first, self.attention, self.last = nn.Linear(16, 16), attention, nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(x + self.attention(x, x, x)[0])


@pytest.mark.parametrize("scale, parts", [(0.5, False), (1.0, True)])
def test_one_module_here_and_several_there(scale: float, parts: bool) -> None:
    torch.manual_seed(0)
    whole = nn.MultiheadAttention(16, 4, batch_first=True)
    found = lockstep(Around(whole), Around(OwnAttention(whole, scale)), torch.randn(2, 7, 16))
    assert ("attention", "attention") in found.mapped
    assert (found.at.a if found.at else "") == ("attention" if parts else "")
