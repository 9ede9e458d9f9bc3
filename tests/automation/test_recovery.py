"""Recovery: it does what was asked for, says so, and `perturbed?` lists it."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from layerstep import DebugConsole, HookAction, HookBuilder, HookTrigger, UserError
from layerstep.render.screen import to_text


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    *,
    scale: Callable[[int], float] = lambda step: 1.0,
    skip: tuple[int, ...] = (),
) -> None:
    torch.manual_seed(1)
    for step in range(1, steps + 1):
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        (F.cross_entropy(model(x), x[:, :3].argmax(dim=1)) * scale(step)).backward()
        if step not in skip:
            optimizer.step()


def broken_at(number: int) -> Callable[[int], float]:
    return lambda step: float("nan") if step == number else 1.0


def recovered(
    action: HookAction, trigger: HookTrigger, steps: int, scale: Callable[[int], float]
) -> tuple[nn.Sequential, torch.optim.Optimizer, DebugConsole, str]:
    model, screen = network(), io.StringIO()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    console = DebugConsole(model, output=screen)
    console.hooks.register_hook(HookBuilder("mend").trigger(trigger).action(action).build())
    with console:
        train(model, optimizer, steps, scale=scale)
    perturbed = to_text(console.execute("perturbed?"), width=150)  # type: ignore[arg-type]
    return model, optimizer, console, screen.getvalue() + perturbed


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_a_skipped_step_is_as_if_it_was_never_called() -> None:
    model, optimizer, _, text = recovered(HookAction.skip_step(), HookTrigger.not_finite(), 6, broken_at(3))
    bare = network()
    plain = torch.optim.AdamW(bare.parameters(), lr=0.01)
    train(bare, plain, 6, scale=broken_at(3), skip=(3,))
    assert same(model, bare)
    states = zip(optimizer.state.values(), plain.state.values(), strict=True)
    assert all(torch.equal(a["exp_avg"], b["exp_avg"]) and a["step"] == b["step"] for a, b in states)
    assert "skipped a step of AdamW, step 3" in text
    assert "yes: 1 change" in text and "hook mend" in text


def test_after_a_skipped_step_the_gradients_are_there() -> None:
    model, _, _, _ = recovered(HookAction.skip_step(), HookTrigger.not_finite(), 3, broken_at(3))
    assert all(p.grad is not None for p in model.parameters())


def test_values_that_are_not_finite_are_replaced() -> None:
    model, _, console, text = recovered(
        HookAction.replace_nonfinite(), HookTrigger.not_finite(), 5, broken_at(2)
    )
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert f"replaced {sum(p.numel() for p in model.parameters())} values of 6 gradients by 0" in text
    assert "yes" in text and console.session.prompt.effects.disturbed[0][0] == "hook mend"


def test_gradients_are_clipped_as_torch_does() -> None:
    model, _, _, text = recovered(
        HookAction.clip(0.1), HookTrigger.gradient_norm(above=0.1), 3, lambda step: 100.0
    )
    bare = network()
    optimizer = torch.optim.AdamW(bare.parameters(), lr=0.01)
    torch.manual_seed(1)
    for _ in range(3):
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        (F.cross_entropy(bare(x), x[:, :3].argmax(dim=1)) * 100.0).backward()
        torch.nn.utils.clip_grad_norm_(bare.parameters(), 0.1)
        optimizer.step()
    assert same(model, bare)
    assert "clipped gradients to a norm of 0.1" in text and "3 times in all" in text


def test_the_learning_rate_is_lowered() -> None:
    _, optimizer, _, text = recovered(
        HookAction.lower_learning_rate(0.5), HookTrigger.step_range(2, 3), 4, lambda step: 1.0
    )
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0025)
    assert "multiplied the learning rate of AdamW by 0.5" in text


def test_the_last_healthy_snapshot_comes_back() -> None:
    model, optimizer, _, text = recovered(
        HookAction.restore(every=2), HookTrigger.not_finite(), 4, broken_at(4)
    )
    bare = network()
    plain = torch.optim.AdamW(bare.parameters(), lr=0.01)
    train(bare, plain, 2)  # the snapshot of step 3 is what two steps have left
    torch.manual_seed(1)
    for _ in range(3):
        x = torch.randn(16, 8)
    bare(x)  # the forward of step 3 has moved the batch norm
    assert same(model, bare)
    assert all(int(state["step"]) == 2 for state in optimizer.state.values())
    assert "went back to step 3: models and AdamW" in text


def test_without_a_snapshot_the_step_is_skipped() -> None:
    model, _, _, text = recovered(HookAction.restore(), HookTrigger.not_finite(), 1, broken_at(1))
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert "there is no healthy snapshot yet" in text


def test_nothing_is_changed_while_the_hook_does_not_act() -> None:
    model, _, _, text = recovered(HookAction.restore(every=1), HookTrigger.not_finite(), 5, lambda step: 1.0)
    bare = network()
    train(bare, torch.optim.AdamW(bare.parameters(), lr=0.01), 5)
    assert same(model, bare) and "no: " in text


class Parted(nn.Module):
    """Returns what is not finite in a part of its output."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> dict[str, object]:
        out = self.inner(x)
        return {"whole": out, "log": (out.detach() * 0 - 1).log(), "name": "parted"}


def replacing(model: nn.Module, *patterns: str, value: float = 0.0) -> DebugConsole:
    console = DebugConsole(model, output=io.StringIO())
    builder = HookBuilder("mend").trigger(HookTrigger.every_forward())
    console.hooks.register_hook(
        builder.action(HookAction.replace_nonfinite(value)).layer_patterns(patterns).build()
    )
    return console


def test_outputs_that_are_not_finite_are_replaced() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight[0] = torch.nan
    x = torch.ones(3, 2)
    console = replacing(model, "0", value=0.5)
    with console:
        out = model(x)
        out.sum().backward()
    expected = model[1](torch.stack([torch.full((3,), 0.5), model[0](x)[:, 1]], dim=1))
    assert torch.equal(out, expected)
    assert model[0].weight.grad is not None and model[0].weight.grad[0].tolist() == [0.0, 0.0]
    text = to_text(console.execute("perturbed?"), width=150)  # type: ignore[arg-type]
    assert "hook mend" in text and "replaced 3 values in the output of 0 by 0.5, step 1" in text
    assert torch.isnan(model(x)).all()  # nothing is left on the model


def test_parts_of_an_output_are_replaced_and_the_rest_is_left() -> None:
    model = Parted()
    with replacing(model):
        out = model(torch.ones(2, 8))
    assert out["log"].tolist() == [[0.0] * 4] * 2 and out["name"] == "parted"
    assert torch.equal(out["whole"], model(torch.ones(2, 8))["whole"])


def test_finite_outputs_are_not_touched() -> None:
    model, bare = network(), network()
    console = replacing(model)
    with console:
        train(model, torch.optim.AdamW(model.parameters(), lr=0.01), 5)
    train(bare, torch.optim.AdamW(bare.parameters(), lr=0.01), 5)
    assert same(model, bare)
    assert "no: " in to_text(console.execute("perturbed?"))  # type: ignore[arg-type]


def test_an_output_that_cannot_be_replaced_disables_the_hook() -> None:
    @dataclasses.dataclass
    class Held:
        value: torch.Tensor

    class Boxed(nn.Module):
        def forward(self, x: torch.Tensor) -> Held:
            return Held(x / 0)

    model = Boxed()
    console = replacing(model)
    with console:
        assert torch.isinf(model(torch.ones(2)).value).all()
    ((_, hook),) = console.hooks
    assert hook.errors == 1 and "Held cannot be replaced" in hook.error


def test_replacing_goes_on_as_often_as_it_may() -> None:
    model = nn.Identity()
    console = DebugConsole(model, output=io.StringIO())
    builder = HookBuilder("mend").trigger(HookTrigger.every_forward()).max_executions(2)
    console.hooks.register_hook(builder.action(HookAction.replace_nonfinite()).build())
    with console:
        seen = [model(torch.tensor([torch.nan])).isnan().item() for _ in range(4)]
    assert seen == [False, False, True, True]


def test_values_are_replaced_in_sparse_gradients() -> None:
    model = nn.Embedding(5, 2, sparse=True)
    console = DebugConsole(model, output=io.StringIO())
    builder = HookBuilder("mend").trigger(HookTrigger.not_finite())
    console.hooks.register_hook(builder.action(HookAction.replace_nonfinite()).build())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with console:
        (model(torch.tensor([1, 1, 3])) * torch.tensor([[1.0, torch.nan]])).sum().backward()
        optimizer.step()
    assert torch.isfinite(model.weight).all()


def test_both_optimizers_of_a_gan_go_back_together() -> None:
    one, two = nn.Linear(2, 2), nn.Linear(2, 2)
    model = nn.ModuleDict({"one": one, "two": two})
    optimizers = [torch.optim.Adam(each.parameters(), lr=0.1) for each in (one, two)]
    console = DebugConsole(model, output=io.StringIO())
    builder = HookBuilder("mend").trigger(HookTrigger.not_finite())
    console.hooks.register_hook(builder.action(HookAction.restore(every=1)).build())
    starts = []
    with console:
        for step in range(4):
            starts.append(values(model))
            for layer, optimizer in zip((one, two), optimizers, strict=True):
                optimizer.zero_grad()
                scale = torch.nan if step == 3 and layer is one else 1.0
                (layer(torch.ones(1, 2)).square().sum() * scale).backward()
                optimizer.step()
                if layer is one:
                    between = values(model)
    assert between == starts[2]
    assert [int(each.state[next(iter(each.state))]["step"]) for each in optimizers] == [2, 3]


def values(model: nn.Module) -> dict[str, list[float]]:
    return {name: value.tolist() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("action", [HookAction.clip(1.0), HookAction.skip_step(), HookAction.restore()])
def test_only_outputs_are_replaced_at_a_forward(action: HookAction) -> None:
    with pytest.raises(UserError, match="acts before a step"):
        HookBuilder("x").trigger(HookTrigger.every_forward()).action(action).build()
