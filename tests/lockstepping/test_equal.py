"""Equal pairs do not part, however they are written, rounded or laid out."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_planted import ids, image, net
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from layerstep import lockstep
from reimplemented import bert, gpt2, llama, mine_from_bert, mine_from_gpt2, mine_from_llama

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

Made = tuple[nn.Module, nn.Module, Tensor]
gpt2, llama, bert = functools.cache(gpt2), functools.cache(llama), functools.cache(bert)


def folded(model: Any) -> Any:
    made = copy.deepcopy(model)
    made.stem, made.bn = fuse_conv_bn_eval(made.stem, made.bn), nn.Identity()
    for block in made.blocks:
        block.conv1, block.bn1 = fuse_conv_bn_eval(block.conv1, block.bn1), nn.Identity()
        block.conv2, block.bn2 = fuse_conv_bn_eval(block.conv2, block.bn2), nn.Identity()
    return made


class Recurrent(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.batch_first = batch_first
        self.into, self.out = nn.Linear(4, 8), nn.Linear(8, 3)
        self.rnn = nn.LSTM(8, 8, num_layers=2, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        if self.batch_first:
            return self.out(self.rnn(self.into(x))[0])
        return self.out(self.rnn(self.into(x.transpose(0, 1)))[0]).transpose(0, 1)


class Steep(nn.Module):
    """Thirty layers, each of which makes rounding errors larger."""

    def __init__(self, is_sequential: bool) -> None:
        super().__init__()
        torch.manual_seed(4)
        layers = [nn.Linear(64, 64) for _ in range(30)]
        for layer in layers:
            nn.init.normal_(layer.weight, std=0.3)
        self.is_sequential = is_sequential
        if is_sequential:
            self.net = nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))
        else:
            for at, layer in enumerate(layers):
                self.add_module(f"layer{at}", layer)

    def forward(self, x: Tensor) -> Tensor:
        if self.is_sequential:
            return self.net(x)
        for layer in self.children():
            x = torch.tanh(layer(x.double().float()))
        return x


class Shared(nn.Module):
    """One layer, called three times; `spare` is not called."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layer, self.relu, self.spare = nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.layer(self.relu(self.layer(self.relu(self.layer(x))))))


class Unrolled(nn.Module):
    def __init__(self, like: Shared) -> None:
        super().__init__()
        self.a, self.b, self.c = (copy.deepcopy(like.layer) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x).relu()).relu()).relu()


class OtherOrder(nn.Module):
    """q, k, v computed in another order than in a twin."""

    def __init__(self, is_turned: bool) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))
        self.is_turned = is_turned

    def forward(self, x: Tensor) -> Tensor:
        if self.is_turned:
            v, k, q = self.v(x), self.k(x), self.q(x)
        else:
            q, k, v = self.q(x), self.k(x), self.v(x)
        return self.o((q @ k.transpose(-1, -2)).softmax(-1) @ v)


class Flat(nn.Module):
    """No module in it is called: all of it is one piece."""

    def __init__(self, like: nn.Sequential) -> None:
        super().__init__()
        self.parts = copy.deepcopy(like)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.parts[0], self.parts[2]
        return torch.relu(x @ first.weight.T + first.bias) @ second.weight.T + second.bias


def _small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def _twin(
    make: Callable[[], nn.Module], change: Callable[[nn.Module], nn.Module], x: Callable[[], Tensor]
) -> Made:
    return make(), change(copy.deepcopy(make())), x()


def _row() -> Tensor:
    return torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(3))


def _sequence() -> nn.Module:
    model = net()
    return nn.Sequential(model.stem, model.bn, nn.ReLU(), *model.blocks, model.pool, nn.Flatten(), model.head)


def _in_training(model: nn.Module) -> nn.Module:
    return model.train()


EQUAL: dict[str, Callable[[], Made]] = {
    "deepcopy": lambda: _twin(net, lambda m: m, image),
    "channels last": lambda: _twin(net, lambda m: m.to(memory_format=torch.channels_last), image),
    "convolutions in bf16": lambda: _twin(net, lambda m: m.bfloat16(), image),
    "convolutions in f16": lambda: _twin(net, lambda m: m.half(), image),
    "convolutions in f64": lambda: _twin(net, lambda m: m.double(), image),
    "folded norms": lambda: _twin(net, folded, image),
    "sequential": lambda: (net(), _sequence(), image()),
    "traced": lambda: _twin(net, lambda m: torch.jit.trace(m, image()), image),
    "gpt2 reimplemented": lambda: (gpt2(), mine_from_gpt2(gpt2()), ids()),
    "gpt2 the other way round": lambda: (mine_from_gpt2(gpt2()), gpt2(), ids()),
    "gpt2 by the fused kernel": lambda: (gpt2(), mine_from_gpt2(gpt2(), fused=True), ids()),
    "fused and by hand": lambda: (mine_from_gpt2(gpt2()), mine_from_gpt2(gpt2(), fused=True), ids()),
    "gpt2 without an activation module": lambda: (gpt2(), mine_from_gpt2(gpt2(), inline=True), ids()),
    "gpt2 in bf16": lambda: _twin(gpt2, lambda m: m.bfloat16(), ids),
    "gpt2 in f64": lambda: _twin(gpt2, lambda m: m.double(), ids),
    "gpt2 reimplemented in bf16": lambda: (gpt2(), mine_from_gpt2(gpt2()).bfloat16(), ids()),
    "gpt2 in training": lambda: (copy.deepcopy(gpt2()).train(), copy.deepcopy(gpt2()).train(), ids()),
    "llama with merged weights": lambda: (llama(), mine_from_llama(llama()), ids()),
    "llama the other way round": lambda: (mine_from_llama(llama()), llama(), ids()),
    "llama in bf16": lambda: _twin(llama, lambda m: m.bfloat16(), ids),
    "bert with torch's attention": lambda: (bert(), mine_from_bert(bert()), ids()),
    "bert in bf16": lambda: (bert(), mine_from_bert(bert()).bfloat16(), ids()),
    "batch first": lambda: (Recurrent(True), Recurrent(False), torch.randn(3, 6, 4)),
    "steep": lambda: (Steep(True), Steep(False), torch.randn(5, 64)),
    "steep in f64": lambda: _twin(lambda: Steep(True), lambda m: m.double(), lambda: torch.randn(5, 64)),
    "a shared layer": lambda: (Shared(), Unrolled(Shared()), _row()),
    "another order": lambda: (OtherOrder(False), OtherOrder(True), _row()),
    "one piece": lambda: (_small(), Flat(_small()), _row()),
    "the same model": lambda: (model := _small(), model, _row()),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_pairs_do_not_part(name: str) -> None:
    first, second, x = EQUAL[name]()
    found = lockstep(first, second, x)
    assert not found.parts, found
    assert not found.weights


def test_a_folded_norm_has_no_counterpart() -> None:
    found = lockstep(net(), folded(net()), image())
    assert found.alone_a == ("bn", "blocks.0.bn1", "blocks.0.bn2", "blocks.1.bn1", "blocks.1.bn2")
    assert ("stem", "stem") in found.mapped
    assert any("stem is stem + bn in the other" in note for note in found.notes)


def test_a_wrong_fold_is_named_behind_the_right_ones() -> None:
    other = folded(net())
    other.blocks[1].conv2.bias.data += 0.5
    found = lockstep(net(), other, image())
    assert found.at is not None and found.at.a == "blocks.1.conv2"


def test_what_is_split_is_mapped_to_its_parts() -> None:
    mapped = lockstep(gpt2(), mine_from_gpt2(gpt2()), ids()).mapped
    for name in "qkv":
        assert ("transformer.h.2.attn.c_attn", f"layers.2.attention.{name}") in mapped


def test_order_does_not_mislead_the_mapping() -> None:
    mapped = lockstep(OtherOrder(False), OtherOrder(True), _row()).mapped
    assert {("q", "q"), ("k", "k"), ("v", "v"), ("o", "o")} <= set(mapped)
    assert ("layer (call 2)", "b") in lockstep(Shared(), Unrolled(Shared()), _row()).mapped


def test_bf16_is_judged_by_the_tolerance_that_is_given() -> None:
    half = copy.deepcopy(gpt2()).bfloat16()
    found = lockstep(gpt2(), half, ids(), tol=1e-3)
    assert found.at is not None and found.at.limit == 1e-3
    assert not lockstep(gpt2(), half, ids(), tol=0.05).parts
