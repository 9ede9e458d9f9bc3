"""Every module call is in the graph, and every edge is one that torch.fx finds, too."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from graph_models import Gpt, RoutedExperts, usual_models
from layerstep import DebugConsole
from layerstep.errors import UserError
from layerstep.graph.model_graph import ModelGraph
from layerstep.graph.picture import picture_of

Edges = set[tuple[str, str]]


def graph_of(model: nn.Module, *args: Any, **kwargs: Any) -> ModelGraph:
    return DebugConsole(model, commands=[]).graph(*args, **kwargs)


def leaf_edges(graph: ModelGraph) -> Edges:
    """The edges between calls of modules without parts: an edge goes through operations between them."""
    parents = {call.parent for call in graph.calls}
    names = {c.index: f"{c.path}#{c.number}" for c in graph.calls if c.index not in parents}
    places: dict[int, set[str]] = {}
    found: Edges = set()
    for op in graph.operations:
        sources = {place for flow in op.reads for each in flow.sources for place in places[each]}
        if op.role in ("input", "output") or op.call in names:
            name = names.get(op.call, op.name)
            found |= {(source, name) for source in sources if source != name}
            sources = {name}
        places[op.index] = sources
    for call in graph.calls:
        if call.index in names:
            name = names[call.index]
            flows = {place for flow in call.inputs for each in flow.sources for place in places[each]}
            found |= {(source, name) for source in flows if source != name}
    return found


def fx_edges(model: nn.Module) -> tuple[list[str], Edges]:
    """The calls in their order and the edges between them, by torch.fx."""
    counts: dict[str, int] = {}
    calls: list[str] = []
    places: dict[fx.Node, set[str]] = {}
    found: Edges = set()
    for node in fx.symbolic_trace(model).graph.nodes:
        sources = {place for each in node.all_input_nodes for place in places[each]}
        if node.op in ("call_module", "placeholder", "output"):
            name = node.target
            if node.op == "call_module":
                counts[name] = counts.get(name, 0) + 1
                name = f"{name}#{counts[name]}"
                calls.append(name)
            found |= {(source, name) for source in sources}
            sources = {name}
        places[node] = sources
    return calls, found


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["gpt", "resnet", "unet", "recurrent", "experts"])
def test_calls_and_edges_are_those_of_fx(name: str, training: bool) -> None:
    model, inputs = usual_models()[name]
    model.train(training)
    calls, edges = fx_edges(model)
    graph = graph_of(model, *inputs)
    parents = {call.parent for call in graph.calls}
    assert [f"{c.path}#{c.number}" for c in graph.calls if c.index not in parents] == calls
    assert leaf_edges(graph) == edges


@pytest.mark.parametrize("name", ["gpt", "resnet", "unet"])
def test_a_picture_of_all_levels_has_the_same_edges(name: str) -> None:
    model, inputs = usual_models()[name]
    graph = graph_of(model, *inputs)
    picture = picture_of(graph, depth=9)
    assert all(box.repeats == 1 for box in picture.boxes)
    names = {box.key: f"{box.name}#{box.number}" for box in picture.boxes if box.role == "module"}
    names |= {box.key: box.name for box in picture.boxes if box.role in ("input", "output")}
    found: Edges = set()
    places: dict[str, set[str]] = {}
    for box in picture.boxes:
        sources = {p for e in picture.edges if e.target == box.key for p in places[e.source]}
        if box.key in names:
            found |= {(source, names[box.key]) for source in sources}
            sources = {names[box.key]}
        places[box.key] = sources
    assert found == leaf_edges(graph)


class _Between(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.a, self.b = how, nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        y = self.a(x)
        if self.how == "write through a view":
            out = torch.zeros(3, 4)
            out[1:] = y[1:]
            return self.b(out)
        if self.how == "out=":
            out = torch.empty(3, 4)
            torch.mul(y, 2, out=out)
            return self.b(out)
        if self.how == "in place":
            y.view(-1).relu_()
            return self.b(y)
        if self.how == "transposed attribute":
            return self.b(y.T.contiguous().T)
        if self.how == "data":
            return self.b(y.data)
        if self.how == "rows":
            return self.b(torch.stack([row for row in y]))
        if self.how == "keyword":
            return self.b(input=y)
        if self.how == "container":
            return {"out": [self.b(F.pad(y, (1, 1))[:, 1:-1])]}
        raise AssertionError(self.how)


@pytest.mark.parametrize(
    "how",
    [
        "write through a view",
        "out=",
        "in place",
        "transposed attribute",
        "data",
        "rows",
        "keyword",
        "container",
    ],
)
def test_an_edge_goes_through_what_lies_between(how: str) -> None:
    found = leaf_edges(graph_of(_Between(how), torch.randn(3, 4)))
    assert found == {("x", "a#1"), ("a#1", "b#1"), ("b#1", "output")}


def test_a_write_of_the_whole_replaces_what_was_there() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.relu, self.b = nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x)
            self.relu(y.view(-1))
            return self.b(y)

    found = leaf_edges(graph_of(Model(), torch.randn(3, 4)))
    assert found == {("x", "a#1"), ("a#1", "relu#1"), ("relu#1", "b#1"), ("b#1", "output")}


def test_modules_that_return_what_they_were_given_keep_both_edges() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.same, self.drop, self.b = (
                nn.Linear(4, 4),
                nn.Identity(),
                nn.Dropout(),
                nn.Linear(4, 4),
            )

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x)
            return self.b(self.drop(self.same(y))) + y

    found = leaf_edges(graph_of(Model().eval(), torch.randn(3, 4)))
    chain = ["x", "a#1", "same#1", "drop#1", "b#1", "output"]
    assert found == {*pairwise(chain), ("a#1", "output")}


def test_a_tensor_that_is_given_twice_is_one_input() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: Tensor, target: Tensor) -> Tensor:
            return F.mse_loss(self.a(x), target)

    x = torch.randn(3, 4)
    both = "x, target"
    assert leaf_edges(graph_of(Model(), x, target=x)) == {(both, "a#1"), ("a#1", "output"), (both, "output")}
    graph = graph_of(Model(), x, target=x.clone())
    assert leaf_edges(graph) == {("x", "a#1"), ("a#1", "output"), ("target", "output")}


def test_routed_experts() -> None:
    model = RoutedExperts()
    experts = [f"experts.{n}#1" for n in range(4)]
    found = leaf_edges(graph_of(model, torch.randn(32, 6)))
    wanted = {("x", "router#1"), ("norm#1", "output")} | {("x", each) for each in experts}
    wanted |= {("router#1", each) for each in experts} | {(each, "norm#1") for each in experts}
    assert wanted <= found
    assert found - wanted <= {("router#1", "norm#1"), ("x", "norm#1")}  # which rows, and the shape
    boxes = [(box.name, box.repeats) for box in picture_of(graph_of(model, torch.randn(32, 6))).boxes]
    assert ("experts.0…3", 4) in boxes


def test_a_module_that_raises_and_is_caught_holds_no_later_calls() -> None:
    class Raises(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bad, self.good = Raises(), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.bad(x)
            except ValueError:
                return self.good(x)

    graph = graph_of(Model(), torch.randn(3, 4))
    assert [(call.path, call.parent) for call in graph.calls][1:] == [("good", 0)]


def test_scripted_parts_are_one_call() -> None:
    model = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU())))
    graph = graph_of(model, torch.randn(3, 4))
    assert leaf_edges(graph) == {("input", "0#1"), ("0#1", "1#1"), ("1#1", "output")}
    assert graph.notes


def test_the_model_and_the_random_stream_stay_as_they_are() -> None:
    model, inputs = usual_models()["resnet"]
    before = {name: each.clone() for name, each in model.state_dict().items()}
    stream = torch.get_rng_state()
    graph_of(model, *inputs)
    assert torch.equal(stream, torch.get_rng_state())
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_what_is_known_of_calls() -> None:
    model, inputs = usual_models()["gpt"]
    graph = graph_of(model, *inputs)
    calls = {call.path: call for call in graph.calls}
    assert calls["blocks.0.qkv"].parameters == 8 * 24 + 24 and calls["blocks.0.qkv"].kind == "Linear"
    assert calls["head"].outputs[0].shape == (2, 5, 11) and calls["head"].outputs[0].dtype == "f32"
    assert graph.calls[0].parameters == sum(each.numel() for each in model.parameters())
    assert ModelGraph.from_json(graph.to_json()) == graph


@pytest.mark.parametrize("by", ["grad", "time", "bytes", "dead"])
def test_statistics(by: str) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
    with torch.no_grad():
        model[0].bias[:3] = -100.0
    x = torch.randn(8, 4)
    model(x).sum().backward()
    graph = graph_of(model, x, by=by)
    found = {call.path: call.value for call in graph.calls}
    if by == "grad":
        grads = [each.grad for each in model.parameters() if each.grad is not None]
        assert found["0"] == pytest.approx(float(torch.cat([each.flatten() for each in grads]).norm()))
        assert found["1"] is None
    elif by == "bytes":
        assert found["0"] == found["1"] == 8 * 6 * 4
    elif by == "dead":
        assert found["1"] == pytest.approx(0.5) and found["0"] == 0
    else:
        assert all(value is not None and value > 0 for value in found.values())


def test_mistakes_are_one_line() -> None:
    console = DebugConsole(Gpt(), commands=[])
    with pytest.raises(UserError, match="arguments of the model"):
        console.graph()
    with pytest.raises(UserError, match="no statistic 'colour'"):
        console.graph(torch.zeros(1, 2).long(), torch.arange(2), by="colour")
    with pytest.raises(UserError, match="no module has a figure for `--by grad`"):
        console.graph(torch.zeros(1, 2).long(), torch.arange(2), by="grad")
    with pytest.raises(UserError, match="cannot be rerun"):
        console.graph(torch.zeros(1, 2))
    with pytest.raises(ValueError, match="not a graph"):
        ModelGraph.from_json("{}")
