"""What people do with a model while it is debugged, each as a function of the model and an input.

Each returns what the program gets from it, so that the bare and the debugged run can be compared.
"""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import re
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Thing = Callable[[nn.Module, Tensor], Any]
THINGS: dict[str, Thing] = {}
SLOW: set[str] = set()
"""Those that take more than 0.1 s: they compile."""


class Net(nn.Module):
    """A small model with parts that are taken apart and replaced below."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8))
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        return self.head(self.norm(self.body(x)))  # type: ignore[no-any-return]


def thing(function: Thing) -> Thing:
    THINGS[function.__name__] = function
    return function


def slow(function: Thing) -> Thing:
    SLOW.add(function.__name__)
    return thing(function)


def _saved(value: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    assert b"layerstep" not in file.getvalue()
    file.seek(0)
    return torch.load(file, **options)


def hooks_of(model: nn.Module) -> list[Any]:
    """Everything that is in the tables of hooks, and in place of a forward."""
    names = [name for name in vars(model) if "hooks" in name]
    found = [item for part in model.modules() for name in names for item in part.__dict__[name].items()]
    return found + [part for part in model.modules() if "forward" in part.__dict__]


def _twin(model: nn.Module, x: Tensor) -> Any:
    """How a copy runs, and that there are no hooks on it."""
    return model(x), hooks_of(model)


@thing
def save_and_load(model: nn.Module, x: Tensor) -> Any:
    return _twin(_saved(model, weights_only=False), x)


@thing
def load_weights_only(model: nn.Module, x: Tensor) -> Any:
    with torch.serialization.safe_globals([Net, nn.Sequential, nn.Linear, nn.ReLU, nn.BatchNorm1d, set]):
        return _twin(_saved(model, weights_only=True), x)


@thing
def state_dict(model: nn.Module, x: Tensor) -> Any:
    loaded = Net()
    answer = loaded.load_state_dict(_saved(model.state_dict(), weights_only=True))
    return list(model.state_dict()), str(answer), loaded(x)


@thing
def load_state_dict(model: nn.Module, x: Tensor) -> Any:
    model.load_state_dict({key: value * 2 for key, value in model.state_dict().items()})
    return model(x)


@thing
def deepcopy(model: nn.Module, x: Tensor) -> Any:
    return _twin(copy.deepcopy(model), x)


@thing
def shallow_copy(model: nn.Module, x: Tensor) -> Any:
    return copy.copy(model)(x)


@thing
def copy_of_a_part(model: Any, x: Tensor) -> Any:
    model.extra = nn.ModuleList([copy.deepcopy(model.head) for _ in range(3)])
    return model(x), len(list(model.modules()))


@thing
def pickled(model: nn.Module, x: Tensor) -> Any:
    data = pickle.dumps(model)
    return _twin(pickle.loads(data), x), b"layerstep" in data


@thing
def cloudpickled(model: nn.Module, x: Tensor) -> Any:
    cloudpickle = __import__("pytest").importorskip("cloudpickle")
    return _twin(cloudpickle.loads(cloudpickle.dumps(model)), x)


@thing
def pickled_hooks_of_the_program(model: Any, x: Tensor) -> Any:
    model.head.register_forward_hook(doubling)
    model.body.register_forward_hook(adding, with_kwargs=True)
    twin = pickle.loads(pickle.dumps(model))
    return twin(x), model(x), [len(table) for table in (twin.head._forward_hooks, twin.body._forward_hooks)]


def doubling(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output * 2


def adding(module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor:
    return output + 1


@thing
def script(model: nn.Module, x: Tensor) -> Any:
    return torch.jit.script(model)(x)


@thing
def script_saved(model: nn.Module, x: Tensor) -> Any:
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(model), file)
    file.seek(0)
    return torch.jit.load(file)(x)


@thing
def script_of_a_part(model: Any, x: Tensor) -> Any:
    model.body = torch.jit.script(model.body)
    return model(x)


@thing
def trace(model: nn.Module, x: Tensor) -> Any:
    traced = torch.jit.trace(model, x)
    return re.sub(r"___torch_mangle_\d+\.", "", str(traced.inlined_graph)), traced(x)


@thing
def trace_of_a_part(model: Any, x: Tensor) -> Any:
    model.body = torch.jit.trace(model.body, x)
    return model(x)


@slow
def export(model: nn.Module, x: Tensor) -> Any:
    program = torch.export.export(model, (x,))
    return str(program.graph), program.module()(x)


@slow
def export_strict(model: nn.Module, x: Tensor) -> Any:
    program = torch.export.export(model, (x,), strict=True)
    return [str(node.target) for node in program.graph.nodes], program.module()(x)


@thing
def fx_trace(model: nn.Module, x: Tensor) -> Any:
    graph, part = torch.fx.symbolic_trace(model), torch.fx.symbolic_trace(model.body)  # type: ignore[arg-type]
    return graph.code, graph(x), pickle.loads(pickle.dumps(part))(x), copy.deepcopy(graph)(x)


@slow
def compiled(model: nn.Module, x: Tensor) -> Any:
    wrapped = torch.compile(model, backend="eager", fullgraph=True)
    return wrapped(x), wrapped(x)


@slow
def compiled_by_aot(model: nn.Module, x: Tensor) -> Any:
    wrapped = torch.compile(model, backend="aot_eager", fullgraph=True)
    wrapped(x).sum().backward()
    return wrapped(x), [p.grad for p in model.parameters()]


@slow
def compiled_in_place(model: nn.Module, x: Tensor) -> Any:
    model.compile(backend="eager")
    return model(x), model(x), _twin(copy.deepcopy(model), x)


@slow
def compiled_function(model: nn.Module, x: Tensor) -> Any:
    @torch.compile(backend="eager")  # type: ignore[untyped-decorator]
    def step(value: Tensor) -> Tensor:
        return model(value).relu()  # type: ignore[no-any-return]

    return step(x), step(x)


@thing
def quantized(model: nn.Module, x: Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
        small(x)  # takes off what quantization has put on the new layers
        return small(x), [type(part).__name__ for part in small.modules()], hooks_of(small)


@thing
def quantized_in_place(model: nn.Module, x: Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8, inplace=True)
        return model(x), [type(part).__name__ for part in model.modules()]


@thing
def wrapped(model: nn.Module, x: Tensor) -> Any:
    class Wrapper(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.inner(*args, **kwargs)

    outer = nn.Sequential(Wrapper(model), nn.Identity())
    return outer(x), list(outer.state_dict())


@thing
def share_memory(model: nn.Module, x: Tensor) -> Any:
    model.share_memory()
    return model(x), all(p.is_shared() for p in model.parameters())


@thing
def replicate(model: Any, x: Tensor) -> Any:
    """What DataParallel does on devices, without any."""
    twin = model._replicate_for_data_parallel()
    twin.head = twin.head._replicate_for_data_parallel()
    return hasattr(twin, "_is_replica"), len(list(twin.children()))


@thing
def data_parallel(model: nn.Module, x: Tensor) -> Any:
    return nn.DataParallel(model)(x)


@thing
def parametrized(model: Any, x: Tensor) -> Any:
    class Double(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight * 2

    nn.utils.parametrize.register_parametrization(model.head, "weight", Double())
    before = model(x)
    nn.utils.parametrize.remove_parametrizations(model.head, "weight")
    return before, model(x), type(model.head).__name__


@thing
def weight_norm(model: Any, x: Tensor) -> Any:
    nn.utils.parametrizations.weight_norm(model.head)
    return model(x), list(model.state_dict())


@thing
def weight_norm_of_old(model: Any, x: Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.utils.weight_norm(model.head)
        before = model(x)
        nn.utils.remove_weight_norm(model.head)
    return before, model(x)


@thing
def spectral_norm(model: Any, x: Tensor) -> Any:
    nn.utils.parametrizations.spectral_norm(model.head)
    return model(x), model(x)


@thing
def pruned(model: Any, x: Tensor) -> Any:
    from torch.nn.utils import prune

    prune.l1_unstructured(model.head, "weight", amount=0.5)
    before = model(x)
    prune.remove(model.head, "weight")
    return before, model(x), list(model.state_dict())


@thing
def functional_call(model: nn.Module, x: Tensor) -> Any:
    weights = {name: value * 2 for name, value in model.named_parameters()}
    return torch.func.functional_call(model, weights, (x,)), model(x)


@thing
def stacked(model: nn.Module, x: Tensor) -> Any:
    models = [model, copy.deepcopy(model)]
    weights, buffers = torch.func.stack_module_state(models)
    base = copy.deepcopy(model).to("meta")

    def call(weights: Any, buffers: Any, value: Tensor) -> Any:
        return torch.func.functional_call(base, (weights, buffers), (value,))

    return torch.func.vmap(call, in_dims=(0, 0, None))(weights, buffers, x), hooks_of(base)


@thing
def averaged(model: nn.Module, x: Tensor) -> Any:
    mean = torch.optim.swa_utils.AveragedModel(model)
    mean.update_parameters(model)
    return mean(x), hooks_of(mean)


@thing
def moved(model: nn.Module, x: Tensor) -> Any:
    return model.double()(x.double()), model.to(torch.float32)(x), model.to("meta")(x.to("meta")).shape


@thing
def halved(model: nn.Module, x: Tensor) -> Any:
    return model.bfloat16()(x.bfloat16())


@thing
def hooked(model: Any, x: Tensor) -> Any:
    """The program's own hooks run, in their order, and go."""
    seen: list[Any] = []
    handles = [
        model.head.register_forward_hook(lambda module, args, output: seen.append("exit")),
        model.head.register_forward_pre_hook(lambda module, args: seen.append("enter"), prepend=True),
        model.head.register_full_backward_hook(lambda module, before, after: seen.append("backward")),
        model.register_forward_hook(lambda module, args, kwargs, output: output + 1, with_kwargs=True),
    ]
    first = model(x)
    first.sum().backward()
    for handle in handles:
        handle.remove()
    return first, seen, model(x), len(seen)


@thing
def fused_by_eval(model: Any, x: Tensor) -> Any:
    layers = nn.Sequential(model.body[0], nn.BatchNorm1d(8)).eval()
    fused = nn.utils.fusion.fuse_linear_bn_eval(layers[0], layers[1])
    return fused(x), hooks_of(fused)


@thing
def replaced_parts(model: Any, x: Tensor) -> Any:
    model.head = nn.Linear(8, 3)
    model.body.append(nn.Tanh())
    model.body[1] = nn.GELU()
    del model.body[0]
    model.body.insert(0, nn.Linear(4, 8))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.1)
    return model(x), model(x).shape


@thing
def signatures(model: nn.Module, x: Tensor) -> Any:
    bound, plain = inspect.signature(model.forward), inspect.signature(type(model).forward)
    return (
        str(bound),
        str(plain),
        inspect.getsource(model.forward),
        str(inspect.signature(type(model).__call__)),
    )


@thing
def walked(model: nn.Module, x: Tensor) -> Any:
    applied: list[str] = []
    model.apply(lambda part: applied.append(type(part).__name__))
    names = [name for name, _ in model.named_modules()]
    return applied, names, repr(model), sorted(dir(model)), [name for name, _ in model.named_parameters()]


@thing
def own_names(model: nn.Module, x: Tensor) -> Any:
    """What is on each module, hooks apart."""
    return [sorted(vars(part)) for part in model.modules()], [
        type(part).__qualname__ for part in model.modules()
    ]


@thing
def per_sample_gradients(model: nn.Module, x: Tensor) -> Any:
    model.eval()
    weights = dict(model.named_parameters())

    def loss(weights: Any, value: Tensor) -> Tensor:
        return torch.func.functional_call(model, weights, (value[None],)).sum()  # type: ignore[no-any-return]

    return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, x)


@thing
def trained(model: nn.Module, x: Tensor) -> Any:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    return list(model.parameters()), _saved(optimizer.state_dict(), weights_only=True)["state"][0]["step"]


@thing
def checkpointed(model: Any, x: Tensor) -> Any:
    from torch.utils.checkpoint import checkpoint

    out = model.head(checkpoint(model.body, x, use_reentrant=False))
    out.sum().backward()
    return out, [p.grad for p in model.body.parameters()]


@thing
def in_inference_mode(model: nn.Module, x: Tensor) -> Any:
    model.eval()
    with torch.inference_mode():
        return model(x).clone()


@thing
def under_autocast(model: nn.Module, x: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(x)


@thing
def class_call_replaced(model: nn.Module, x: Tensor) -> Any:
    """A library wraps the calls of all modules, and takes its wrapper off again."""
    calls, before = [], nn.Module.__call__

    def counting(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        calls.append(type(self).__name__)
        return before(self, *args, **kwargs)

    nn.Module.__call__ = counting  # type: ignore[method-assign]
    try:
        return model(x), calls
    finally:
        nn.Module.__call__ = before  # type: ignore[method-assign]


@thing
def forward_replaced(model: Any, x: Tensor) -> Any:
    """As accelerate and Lightning do."""
    inner = model.forward
    model.forward = lambda *args, **kwargs: inner(*args, **kwargs) * 2
    before = model(x)
    del model.forward
    return before, model(x)


@thing
def raised(model: Any, x: Tensor) -> Any:
    try:
        model(x[:, :2])
    except RuntimeError as error:
        return type(error).__name__, str(error)
    return "nothing"
