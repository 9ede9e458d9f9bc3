"""Models written twice: equal ones do not part, and one difference is named at its layer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import rewritten_layers as layers
from rewritten_flat import Blocks, Flat
from rewritten_layers import Made
from rewritten_lm import Lm, OtherLm
from rewritten_sequences import (
    Experts,
    Graph,
    OtherExperts,
    OtherGraph,
    OtherTagger,
    OtherTranslator,
    Tagger,
    Translator,
    graph_input,
    rows,
    words,
)
from rewritten_vision import OtherUnet, OtherVit, PlainResNet, ResNet, Unet, Vit, pixels
from torch import Tensor, nn

from layerstep import lockstep

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def _written_twice(
    first: Callable[[], nn.Module], second: Callable[..., nn.Module], given: Callable[[], object]
) -> Callable[..., Made]:
    def made(fault: str = "") -> Made:
        x = given()
        return first(), second(first(), fault), x if isinstance(x, tuple) else (x,)

    return made


def _rows() -> Tensor:
    return rows(10, 6)


MODELS: dict[str, Callable[..., Made]] = {
    "vision transformer": _written_twice(Vit, OtherVit, pixels),
    "residual net": _written_twice(ResNet, PlainResNet, pixels),
    "u-net": _written_twice(Unet, OtherUnet, pixels),
    "tagger": _written_twice(Tagger, OtherTagger, words),
    "translator": _written_twice(Translator, OtherTranslator, words),
    "experts": _written_twice(Experts, OtherExperts, _rows),
    "graph": _written_twice(Graph, OtherGraph, graph_input),
    "flat": _written_twice(Blocks, Flat, words),
    "language model": _written_twice(Lm, OtherLm, words),
    **{name: getattr(layers, name) for name in layers.__all__},
}


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_equal_models_do_not_part(name: str, is_turned: bool) -> None:
    first, second, x = MODELS[name]()
    found = lockstep(second, first, *x) if is_turned else lockstep(first, second, *x)
    assert not found.parts, found
    assert not found.weights


BLOCK, ROOT = ("blocks.1", "layers.1"), ("", "")
ATTENTION, MIXER = ("blocks.1.attn", "layers.1"), ("blocks.1", "h.1.mixer")
PLAIN, UP, DOWN = ("blocks.1", "body.1"), ("encoder.layers.1", "up.1"), ("decoder.layers.1", "down.1")
NORM, OWN_NORM, GRAPH = ("blocks.1.n2", "h.1.post"), ("norms.1", "norms.1"), ("layers.1", "parts.1")

FAULTS: list[tuple[str, str, tuple[str, str]]] = [
    ("vision transformer", "eps", ("blocks.1.norm2", "layers.1.ln_b")),
    ("vision transformer", "no v bias", ("blocks.1.attn.qkv", "layers.1.to_v")),
    ("vision transformer", "scale", ATTENTION),
    ("vision transformer", "axis", ATTENTION),
    ("vision transformer", "gelu", ("blocks.1.mlp", "layers.1")),
    ("vision transformer", "residual", BLOCK),
    *(("vision transformer", fault, ROOT) for fault in ("token last", "no place", "pooled")),
    *(("residual net", fault, PLAIN) for fault in ("bn eps", "slope", "circular", "pool padding")),
    ("residual net", "groups", ("stem.1", "norm")),
    ("residual net", "max", ROOT),
    *(("u-net", fault, ROOT) for fault in ("hard", "corners", "order")),
    *(("tagger", fault, ("rnn", "encoder")) for fault in ("gates", "no flip")),
    *(("tagger", fault, ROOT) for fault in ("unbiased", "axis")),
    *(("translator", fault, UP) for fault in ("relu", "norm first")),
    *(("translator", fault, DOWN) for fault in ("mask", "padding", "memory")),
    *(("translator", fault, ROOT) for fault in ("from one", "halves")),
    *(("experts", fault, ROOT) for fault in ("not normalised", "eps")),
    *(("graph", fault, GRAPH) for fault in ("no loops", "one side")),
    ("graph", "alpha", ROOT),
    ("flat", "eps", ("blocks.1.ln2", "b1_n2")),
    ("flat", "weight", ("blocks.1.ff.2", "b1_down")),
    *(("flat", fault, ("blocks.1.att", "")) for fault in ("scale", "swapped")),
    ("flat", "relu", ("blocks.1.ff", "")),
    ("flat", "double", ROOT),
    *(("language model", fault, MIXER) for fault in ("interleaved", "groups", "ahead", "window")),
    *(("language model", fault, NORM) for fault in ("half norm", "one plus")),
    *(("language model", fault, ("blocks.1", "h.1")) for fault in ("dropped", "quick")),
    ("language model", "not tied", ("head", "unembed")),
    ("language model", "table scale", ROOT),
    *(
        ("functions", each, ROOT)
        for each in ("relu", "silu", "mish", "tanh", "cast", "clamp", "sign", "dropped")
    ),
    *(("own_norms", each, OWN_NORM) for each in ("axis", "unbiased", "no mean", "no shift", "eps outside")),
    *(("convolutions_for_linears", fault, ("2", "c.1")) for fault in ("transposed", "bias")),
    ("low_rank", "scale", ("2", "2")),
    ("weight_norms", "gain", ("2", "2")),
    *(("batch_norms", fault, ("4", "4")) for fault in ("momentum", "eps", "eval")),
    ("left_on", "training", ("3", "3")),
    *(("bags", fault, ("e", "e")) for fault in ("sum", "row")),
    ("tied", "row", ("h", "h")),
    ("stacked", "bias", ("r", "up")),
    ("parallel", "serial", ("1", "1")),
    *(("separate_heads", fault, ROOT) for fault in ("scale", "order")),
]


@pytest.mark.parametrize(("name", "fault", "where"), FAULTS, ids=lambda each: str(each).replace("'", ""))
def test_one_difference_is_named_at_its_layer(name: str, fault: str, where: tuple[str, str]) -> None:
    first, second, x = MODELS[name](fault)
    found = lockstep(first, second, *x)
    assert found.at is not None, found
    assert (found.at.a, found.at.b) == where


def test_the_parts_of_a_stack_are_mapped_to_it() -> None:
    first, second, x = layers.stacked("bias")
    found = lockstep(first, second, *x)
    assert {("r", "low"), ("r", "up")} <= set(found.mapped)
    (wrong,) = found.weights
    assert (wrong.a, wrong.b, wrong.differing) == ("r.bias_hh_l1", "up.cell.bias_hh", 1)


def test_a_block_of_functions_is_mapped_to_the_module_with_its_weights() -> None:
    first, second, x = MODELS["residual net"]()
    assert ("blocks.2", "body.2") in lockstep(first, second, *x).mapped
    second.body[2].conv2.data[0, 0, 1, 1] += 0.5
    found = lockstep(first, second, *x)
    assert found.at is not None and (found.at.a, found.at.b) == ("blocks.2", "body.2")
    assert "one value of 288 differs in blocks.2.conv2.weight | body.2.conv2" in str(found.weights[0])


def test_a_buffer_that_is_written_otherwise_is_told() -> None:
    found = lockstep(*_flat(layers.batch_norms("momentum"))).at
    assert found is not None
    assert found.words == "running_mean is another after the call"
    assert found.settings == ("momentum 0.1 and 0.01",)


def test_what_this_input_does_not_show_is_a_note() -> None:
    found = lockstep(*_flat(layers.batch_norms("momentum in evaluation")))
    assert not found.parts
    assert found.notes == ("set otherwise, without effect here: 4 (momentum 0.1 and 0.01)",)
    (note,) = lockstep(*_flat(layers.tied())).notes
    assert note == "a has one weight for e and h; the other has a copy for each"


def test_the_first_may_have_another_dtype_than_the_input() -> None:
    first, second, x = layers.functions()
    assert not lockstep(second.double(), first, *x).parts


def _flat(made: Made) -> tuple[nn.Module | Tensor, ...]:
    return made[0], made[1], *made[2]
