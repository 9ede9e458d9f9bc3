"""Edits: what they replace, when they act, and the way back."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from layerstep import DebugConsole
from layerstep.edits.exchange import exchange
from layerstep.errors import UserError
from zoo import console_on, taps_on


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


X = torch.linspace(-1, 1, 12).view(3, 4)


def run(model: nn.Module, *lines: str, x: Tensor = X) -> tuple[Any, str]:
    console, seen = console_on(model, [*lines, "continue"])
    result = console.run(x)
    assert not seen.bugs and not taps_on(model), seen.text
    return result, seen.text


# --- what is replaced ---

Pair = namedtuple("Pair", "first second")


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    hidden: Tensor
    layers: tuple[Tensor, ...]


class Plain:
    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden


T, U = torch.zeros(2), torch.ones(2)


@pytest.mark.parametrize(
    "value, read",
    [
        ((T, U), lambda new: new[0]),
        ([U, T], lambda new: new[1]),
        ({"a": T, "b": (U, T)}, lambda new: new["b"][1]),
        (OrderedDict(a=T), lambda new: new["a"]),
        (Pair(U, T), lambda new: new.second),
        (Frozen(T, (U, T)), lambda new: new.layers[1]),
        (Plain(T), lambda new: new.hidden),
        (torch.return_types.max((T, U)), lambda new: new.values),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_tensor_is_exchanged_wherever_it_is(value: Any, read: Callable[[Any], Any]) -> None:
    new = torch.full((2,), 7.0)
    changed = exchange(value, {id(T): new})
    assert type(changed) is type(value) and changed is not value
    assert read(changed) is new and read(value) is T
    assert exchange(value, {}) is value


def test_every_occurrence_in_a_model_output_is_exchanged() -> None:
    transformers = pytest.importorskip("transformers")
    kind = transformers.modeling_outputs.BaseModelOutput
    output = kind(last_hidden_state=T, hidden_states=(U, T))
    changed = exchange(output, {id(T): U})
    assert type(changed) is kind and changed.last_hidden_state is U and changed.hidden_states[-1] is U
    assert output.last_hidden_state is T


class Refuses:
    def __init__(self) -> None:
        self.hidden = T

    def __copy__(self) -> Any:
        raise TypeError("one of a kind")


def test_a_class_that_cannot_be_rebuilt_is_one_clear_line() -> None:
    with pytest.raises(UserError, match="a Refuses cannot be made anew: one of a kind"):
        exchange(Refuses(), {id(T): U})


@pytest.mark.parametrize(
    "line, expected",
    [
        ("set out = out * 2", lambda out: out * 2),
        ("set out = 0", torch.zeros_like),
        (
            "set out[0, 1:] = 5",
            lambda out: out.index_put((torch.tensor(0), torch.tensor(1)), torch.tensor(5.0)),
        ),
        ("set out = torch.ones(2)", torch.ones_like),
    ],
)
def test_set_replaces_a_value_of_this_call(line: str, expected: Callable[[Tensor], Tensor]) -> None:
    model = small()
    bare = model(X)
    seen, text = run(model, "break 2", "continue", line)
    assert torch.equal(seen, expected(bare)), text
    assert torch.equal(model(X), bare)


def test_inputs_are_set_at_the_entry_and_outputs_at_the_exit() -> None:
    model = small()
    seen, text = run(model, "break 2 enter", "continue", "set out = 0", "set inp = inp * 0")
    assert "2 has not finished" in text and torch.equal(seen, model[2](torch.zeros(3, 4)))


class Masked(nn.Module):
    def forward(self, x: Tensor, *, mask: Tensor, flag: bool = False) -> Tensor:
        return x * mask + flag


class WithKeywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Masked()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, mask=torch.ones(4), flag=False)


def test_keyword_arguments_are_set_by_their_names() -> None:
    lines = ("break inner enter", "continue", "set kwargs.mask = 0", "set kwargs.flag = True")
    seen, text = run(WithKeywords(), *lines)
    assert torch.equal(seen, torch.ones(3, 4)), text


def test_an_edit_acts_in_every_call_until_it_is_undone() -> None:
    model = small()
    console, seen = console_on(model, ["edit 1 out * 0", "continue"])
    with console:
        assert torch.equal(model(X), model(X)) and torch.equal(model(X)[0], model[2].bias)
        console.execute("undo")
        assert torch.equal(model(X), small()(X))
    assert not taps_on(model) and not seen.bugs


@pytest.mark.parametrize(
    "line, acts",
    [
        ("edit 0 out * 0 for 2", [True, True, False]),
        ("edit 0 out * 0 if forward == 2", [False, True, False]),
        ("edit 0 out * 0 call 2", [False, False, False]),
        ("ignored", [False, True, True]),
    ],
)
def test_an_edit_acts_where_its_reach_says(line: str, acts: list[bool]) -> None:
    model = small()
    bare = model(X)
    console, _ = console_on(model, [])
    with console:
        for each in ["edit 0 out * 0", "ignore 1 1"] if line == "ignored" else [line]:
            console.execute(each)
        assert [not torch.equal(model(X), bare) for _ in range(3)] == acts


def test_call_two_is_the_second_call_of_a_shared_module() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([self.inner(x), self.inner(x)])

    seen, _ = run(Twice(), "edit inner 0 call 2")
    assert seen[0].abs().sum() > 0 and not seen[1].any()


def test_tokens_are_positions_of_the_sequence() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    x = torch.randn(2, 5, 4)
    seen, text = run(model, "edit 0 0 tokens 1:3", x=x)
    assert not seen[:, 1:3].any() and torch.equal(seen[:, 3:], model(x)[:, 3:]), text
    seen, _ = run(model, "edit 0 0 tokens -1", x=x)
    assert not seen[:, -1].any() and seen[:, :-1].all()


# --- gradients ---


def gradients(model: nn.Module, *lines: str) -> list[Tensor | None]:
    console, seen = console_on(model, [])
    with console:
        for line in lines:
            console.execute(line)
        model(X).square().sum().backward()
    assert not seen.bugs, seen.text
    found = [parameter.grad for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = None
    return found


def test_a_constant_stops_the_gradient_with_zeros() -> None:
    weight, bias, *_ = gradients(small(), "edit 1 0.5")
    assert weight is not None and bias is not None and not weight.any() and not bias.any()


def test_through_passes_the_gradient_as_if_nothing_was_replaced() -> None:
    exact = torch.full((3, 4), 1e3)
    model = small()
    model[1].register_forward_hook(lambda module, args, out: out + (exact - out).detach())
    model(X).square().sum().backward()
    wanted = model[0].weight.grad
    (found, *_) = gradients(small(), "edit 1 1e3 --through")
    assert found is not None and wanted is not None
    assert torch.allclose(found, wanted, rtol=1e-4)


@pytest.mark.parametrize("line", ["ablate 1", "patch 1 from torch.zeros(3, 4)"])
def test_what_is_ablated_or_patched_has_the_gradient_that_is_asked_for(line: str) -> None:
    stopped, through, cut = (gradients(small(), f"{line}{how}")[0] for how in ("", " --through", " --cut"))
    wanted = gradients(small(), "edit 1 0 --through")[0]
    assert stopped is not None and not stopped.any() and cut is None
    assert through is not None and wanted is not None and through.any() and torch.equal(through, wanted)


def test_cut_gives_none() -> None:
    weight, bias, *rest = gradients(small(), "edit 1 0.5 --cut")
    assert weight is None and bias is None and all(each is not None for each in rest)


def test_an_expression_keeps_its_own_gradient() -> None:
    found, wanted = gradients(small(), "edit 0 out * 3"), small()
    wanted[2](wanted[1](wanted[0](X) * 3)).square().sum().backward()
    for one, parameter in zip(found, wanted.parameters(), strict=True):
        assert one is not None and parameter.grad is not None and torch.equal(one, parameter.grad)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.inner, self.reentrant = small(), reentrant

    def forward(self, x: Tensor) -> Tensor:
        if self.reentrant is None:
            return self.inner(x)
        x = x.clone().requires_grad_()
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)  # type: ignore[no-any-return]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(
    "line", ["edit inner.1 out * 2 for 1", "ablate inner.1 noise", "ablate inner.0 mean"]
)
def test_an_edit_acts_again_in_the_recomputation_of_a_checkpoint(line: str, reentrant: bool) -> None:
    wanted, found = gradients(Checkpointed(None), line), gradients(Checkpointed(reentrant), line)
    for one, other in zip(found, wanted, strict=True):
        assert one is not None and other is not None and torch.allclose(one, other, rtol=1e-6)


def test_the_gradient_of_an_output_can_be_edited() -> None:
    plain, edited = gradients(small()), gradients(small(), "edit 1.grad grad * 0.5")
    assert plain[0] is not None and edited[0] is not None and torch.allclose(edited[0], plain[0] * 0.5)
    assert plain[2] is not None and edited[2] is not None and torch.equal(edited[2], plain[2])


def test_the_gradient_of_a_parameter_is_edited_once_before_the_step() -> None:
    def trained(*lines: str) -> Tensor:
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        console, seen = console_on(model, [])
        with console:
            for line in lines:
                console.execute(line)
            for _ in range(4):  # accumulated
                model(X).sum().backward()
            optimizer.step()
        assert not seen.bugs, seen.text
        return model[2].bias.detach()

    start = small()[2].bias.detach()
    plain, edited = trained(), trained("edit 2.bias.grad grad * 0.5")
    assert torch.allclose(edited - start, (plain - start) * 0.5)


# --- sugar ---


@pytest.mark.parametrize(
    "line, expected",
    [
        ("ablate 1", lambda out: torch.zeros_like(out)),
        ("ablate 1 mean", lambda out: out.mean(0).expand_as(out)),
        ("scale 1 0.5", lambda out: out * 0.5),
        ("steer 1 torch.ones(4) by 2", lambda out: out + 2),
        ("patch 1 from torch.ones(3, 4)", torch.ones_like),
    ],
)
def test_sugar(line: str, expected: Callable[[Tensor], Tensor]) -> None:
    model = small()
    seen, text = run(model, line)
    assert torch.equal(seen, model[2](expected(model[1](model[0](X))))), text


def test_skip_returns_the_input_and_bare_does_not_run_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    wanted = model[2](model[0](X))
    seen, _ = run(model, "skip 1")
    assert torch.equal(seen, wanted) and int(model[1].num_batches_tracked) == 1
    seen, _ = run(model, "skip 1 --bare")
    assert torch.equal(seen, wanted) and int(model[1].num_batches_tracked) == 1
    _, text = run(model, "skip 2")
    assert "it cannot be skipped; it is disabled" in " ".join(text.split())


def test_noise_leaves_the_random_streams_of_the_run_alone_and_repeats() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    torch.manual_seed(1)
    model(X)
    after = torch.get_rng_state()
    outputs = []
    for line in ("ablate 0 noise", "ablate 0 noise", "ablate 0 resample"):
        torch.manual_seed(1)
        outputs.append(run(model, line)[0])
        assert torch.equal(torch.get_rng_state(), after)
    assert torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2])


def test_a_patch_takes_the_value_of_a_recorded_forward() -> None:
    model = small()
    console, _ = console_on(model, ["record 1 --tensors", "continue"])
    with console:
        first = model(X)
        model(X * 2)
        console.execute("patch 1 from forward 1")
        assert torch.equal(model(X * 3), first)


# --- undo ---


def test_undo_gives_a_weight_its_values_and_its_count_of_writes_back() -> None:
    model = small()
    before, version = model[0].weight.detach().clone(), model[0].weight._version
    _, text = run(model, "break 2", "continue", "set model.0.weight[0, 1:3] = 9", "undo")
    assert torch.equal(model[0].weight, before) and model[0].weight._version == version, text


def test_a_weight_that_another_has_written_is_not_taken_back() -> None:
    model = small()
    console, _ = console_on(model, [])
    with console:
        console.execute("set model.0.bias = 1")
        with torch.no_grad():
            model[0].bias.add_(1)
        answer = console.execute("undo")
    assert "was written 1 times since" in str(answer)
    assert torch.equal(model[0].bias, torch.full((4,), 2.0))


def test_what_this_call_was_given_can_be_taken_back_while_it_stands() -> None:
    model = small()
    seen, text = run(model, "break 1", "continue", "set out = 0", "undo")
    assert torch.equal(seen, model(X)), text
    _, text = run(model, "break 1", "continue", "set out = 0", "step", "undo")
    assert "forward 1 went on with its value" in text


def test_perturbed_and_each_stop_tell_of_edits() -> None:
    _, text = run(small(), "scale 0 2", "break 1", "continue", "perturbed?", "undo all", "perturbed?")
    assert "edited: 1 at 0 (acted once)" in text and "scale 0 2" in text
    assert "edits that were undone acted before: 1" in text


def test_redo_makes_it_again() -> None:
    model = small()
    seen, _ = run(model, "edit 2 0", "undo", "redo")
    assert not seen.any()


def test_an_edit_that_raises_is_told_and_disabled_and_the_run_goes_on() -> None:
    model = small()
    seen, text = run(model, "edit 1 out + nosuch")
    assert torch.equal(seen, model(X)) and "edit 1 failed: NameError" in text and "it is disabled" in text


def test_an_edit_from_code_ends_with_its_block() -> None:
    model = small()
    with DebugConsole(model) as console:
        with console.edit("1", lambda out: out * 0):
            assert torch.equal(model(X)[0], model[2].bias)
        assert torch.equal(model(X), small()(X))


# --- what if ---


def test_whatif_shows_where_two_futures_part_and_changes_nothing() -> None:
    model = small()
    seen, text = run(model, "break 2", "continue", "whatif ablate 1 metric out.sum()", "perturbed?")
    assert torch.equal(seen, model(X)) and "3 of 4 calls differ" in text and "✓ no:" in text
    bare, other = model(X).sum().item(), model[2].bias.sum().item() * 3
    assert f"{bare:.5g} as it is, {other:.5g} with the edit" in text
    _, text = run(model, "break 2", "continue", "whatif scale 1 1")
    assert "nothing changes" in text


def test_a_sweep_finds_the_module_that_carries_the_difference() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))

        def forward(self, x: Tensor) -> Tensor:
            return sum(part(x) * (100 if at == 3 else 1) for at, part in enumerate(self.parts))  # type: ignore

    torch.manual_seed(0)
    line = "patch --sweep parts.* from input torch.zeros(3, 4) metric out.abs().sum()"
    _, text = run(Branches(), "break parts.5", "continue", line)
    (widest,) = [row.split()[0] for row in text.splitlines() if row.endswith("█" * 20)]
    assert widest == "parts.3"


def test_a_sweep_says_which_modules_are_not_called() -> None:
    """Its row would else say that the module changes nothing."""
    model = small()
    model.spare = nn.Linear(4, 4)
    model.forward = lambda x: model[2](model[1](model[0](x)))  # type: ignore[method-assign]
    _, text = run(model, "break 2", "continue", "patch --sweep spare from torch.zeros(3, 4) metric out.sum()")
    assert "it is not called in this forward" in text


def test_a_sweep_by_tokens_finds_the_token_and_draws_all_of_them() -> None:
    class Sums(nn.Module):
        """Only token 2 of the second part matters."""

        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            first, second, third = (part(x) for part in self.parts)
            return first.mean() * 0.01 + second[:, 2].sum() + third.mean() * 0.01

    torch.manual_seed(0)
    x = torch.randn(2, 5, 4)
    line = "patch --sweep parts.* from input torch.zeros(2, 5, 4) metric out --by token"
    _, text = run(Sums(), "break parts.2", "continue", line, x=x)
    rows = [row.split()[:2] for row in text.splitlines() if row.startswith("parts.")]
    assert ["parts.1", "2"] in rows and "change of out" in text
    assert rows[-8:][0] == ["parts.1", "2"], text


class Heads(nn.Module):
    """Two heads; the model looks at the second."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.qkv, self.proj = 2, nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        with torch.no_grad():
            self.proj.weight.copy_(torch.diag(torch.tensor([0.0, 0.0, 1.0, 1.0])))

    def forward(self, x: Tensor) -> Any:
        return self.proj(self.qkv(x))


def test_heads_are_patched_one_by_one() -> None:
    torch.manual_seed(0)
    model, x, other = nn.Sequential(Heads()), torch.randn(2, 5, 4), torch.randn(2, 5, 4)
    line = "patch 0 --head 1 from input torch.zeros(2, 5, 4)"
    patched, text = run(model, "break 0.qkv", "continue", line, x=x)
    assert torch.equal(patched, model(torch.zeros(2, 5, 4))), text
    tokens, text = run(model, "break 0.qkv", "continue", line + " tokens 3", x=x)
    assert torch.equal(tokens[:, 3], patched[:, 3]) and torch.equal(tokens[:, :3], model(x)[:, :3]), text
    untouched, _ = run(model, "break 0.qkv", "continue", line.replace("1", "0", 1), x=other)
    assert torch.equal(untouched, model(other))
    sweep = "patch --sweep 0 from input torch.zeros(2, 5, 4) metric out.abs().sum() --by head"
    _, text = run(model, "break 0.qkv", "continue", sweep, x=x)
    rows = [row.split() for row in text.splitlines() if row.startswith("0  ") and len(row.split()) == 4]
    assert [row[1] for row in rows] == ["1", "0"] and rows[1][3] in ("+0", "0"), text


def test_one_head_is_ablated() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Heads()), torch.randn(2, 5, 4)
    seen, text = run(model, "ablate 0 --head 1", x=x)
    assert not seen.any() and "head 1 of 2" in text
    untouched, _ = run(model, "ablate 0 --head 0", x=x)
    assert torch.equal(untouched, model(x))
    part, _ = run(model, "ablate 0 --head 1 tokens 3", x=x)
    assert not part[:, 3].any() and torch.equal(part[:, :3], model(x)[:, :3])
    refused, text = run(model, "ablate 0 --head 1 --cut", x=x)
    assert torch.equal(refused, model(x)) and "--cut would cut all heads" in text
