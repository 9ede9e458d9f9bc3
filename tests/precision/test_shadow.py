"""`shadow fp64`: the first op that loses digits, and that the shadow is what float64 would have computed."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerstep import DebugConsole
from layerstep.frontends.completion import complete
from layerstep.precision.lost_digits import Loss, Losses
from layerstep.precision.shadow_run import Shadower, Step
from layerstep.rerun.kv_caches import CallProgress
from layerstep.rerun.module_call import rerun
from play import play as session_of
from play import script_named
from zoo import console_on, entry_named, play


def _follow(
    model: nn.Module, *args: Any, hear: Any = lambda step: None, **options: Any
) -> tuple[Shadower, Any]:
    """Run a model once more beside its shadow; the watcher and the output."""
    session = DebugConsole(model, commands=[]).session
    watcher = Shadower(hear, **{"seconds": 60.0, **options})
    done = rerun(session, model, args=args, kwargs={}, progress=CallProgress.BEFORE, watcher=watcher)
    return watcher, done.output


def _losses(model: nn.Module, *args: Any, tolerance: float | None = None) -> Losses:
    losses = Losses(lambda module: type(module).__name__, tolerance=tolerance)
    _follow(model, *args, hear=losses.see)
    return losses


def _first(model: nn.Module, *args: Any) -> Loss:
    first = _losses(model, *args).first
    assert first is not None
    return first


def _input(*shape: int) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(*shape or (8, 64))


# --- the shadow is what float64 would have computed ---


class Views(nn.Module):
    """Views, writes in place through them, indices, chunks, expansions, `out=`, lists of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        flat = x.view(-1)
        flat[::3].mul_(1.7)
        x.t()[5:9].add_(x[0, 0])
        x[2] = x[3] / 3
        x[:, torch.tensor([1, 5])] += 0.1
        left, right = x.chunk(2, 1)
        left.sub_(right.exp().mean(0, keepdim=True).expand_as(left))
        x.masked_fill_(x > 2, 0.3)
        torch.mul(left, right, out=(room := torch.empty_like(left)))
        y = torch.cat([room, x.flip(1)], 1).permute(1, 0).contiguous()
        y = torch.where(y > 0, y, y.abs().sqrt()).sort(0).values
        torch._foreach_mul_([y, x], 0.7)
        return (
            torch.einsum("ab,bc->ac", y, x).softmax(-1).gather(1, torch.arange(96)[:, None] % 64) + y[:, :1]
        )


class Norms(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Unflatten(1, (4, 4, 4)),
            nn.Conv2d(4, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.GroupNorm(2, 8),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.LayerNorm(32),
            nn.Linear(32, 5),
            nn.LogSoftmax(-1),
        )


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(64, 4, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(64, 4, 32, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = x[None]
        x = self.layer(x + self.attend(x, x, x)[0])
        return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True)


class Casts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        half = torch.softmax(x.half(), -1, dtype=torch.float32).to(torch.bfloat16)
        return (half * x.double()).float() @ x.T


@pytest.mark.parametrize("kind", [Views, Norms, Attends, Casts])
@pytest.mark.parametrize("is_training", [True, False])
def test_the_shadow_is_the_module_in_float64(kind: type[nn.Module], is_training: bool) -> None:
    torch.manual_seed(0)
    model = kind().train(is_training)
    x = _input()
    watcher, output = _follow(model, x)
    assert watcher.steps > 3 and not watcher.unshadowed and not watcher.ended
    shadow = watcher.shadows.of(output)
    assert shadow is not None
    if kind is Casts:  # what a cast to half loses, a shadow keeps
        right = (torch.softmax(x.double(), -1) * x.double()) @ x.double().T
    else:
        with torch.no_grad():
            right = model.double()(x.double())
    torch.testing.assert_close(shadow, right, rtol=1e-10, atol=1e-12)
    error = watcher.error_of(output)
    assert error is not None and 0 < error < (0.02 if kind is Casts else 1e-4)


def test_random_numbers_and_jumps_are_those_of_the_run() -> None:
    class Random(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            noise = torch.rand_like(x) + torch.empty_like(x).bernoulli_(0.5)
            return (
                ((x * 1.1).round() + noise).floor()
                + F.dropout(x, 0.5) * 0
                + torch.div(x, 3, rounding_mode="floor")
            )

    losses = _losses(Random(), _input() * 1e3)
    assert losses.first is None and losses.largest is not None and losses.largest.after < 1e-6


def test_a_kernel_of_others_is_taken_from_the_run() -> None:
    calls: list[torch.dtype] = []

    @torch.library.custom_op("layerstep_test::single", mutates_args=())
    def single(x: Tensor) -> Tensor:
        calls.append(x.dtype)
        return x * 2

    class Single(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return single(x / 3) / 3

    watcher, output = _follow(Single(), _input())
    assert watcher.unshadowed == {"layerstep_test.single": 1} and calls == [torch.float32]
    assert watcher.steps == 2 and (watcher.error_of(output) or 0) < 1e-6
    console, seen = console_on(nn.Sequential(Single()), ["break 0", "continue", "shadow fp64"])
    with console:
        console.model(_input())
    assert "not shadowed but taken for right: 1 ops (layerstep_test.single)" in " ".join(seen.text.split())


def test_what_cannot_be_followed_is_not_run_twice() -> None:
    class Complex(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            turned = torch.view_as_complex(x.reshape(-1, 2) * 0.5)
            turned.mul_(2 + 1j)
            values, places = torch.empty(8), torch.zeros(8, dtype=torch.long)
            torch.max(x / 3, dim=1, out=(values, places))
            count = torch.zeros(8, dtype=torch.long)
            count.add_(places)
            return torch.view_as_real(turned), places, count

    x = _input()
    watcher, output = _follow(Complex(), x)
    for ours, theirs in zip(output, Complex()(x), strict=True):
        assert torch.equal(ours, theirs)
    assert watcher.unshadowed.keys() >= {"aten.view_as_complex", "aten.mul_"}
    assert watcher.error_of(output[0]) is None, "its shadow is out of date"


# --- who is to blame ---


class Variance(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x * 0.1 + 1e4
        second = x.square().mean(-1)
        first = x.mean(-1)
        spread = second - first * first  # guilty
        return (x - first[:, None]) / (spread.abs()[:, None] + 1e-6).sqrt()


def test_the_guilty_subtraction() -> None:
    loss = _first(nn.Sequential(nn.Identity(), Variance()), _input())
    assert loss.op == "sub" and loss.path == "Variance"
    assert loss.place.text.endswith("# guilty") and loss.place.file == __file__
    assert loss.before < 1e-6 and loss.after > 1 and loss.own == 0
    assert [name for name, _ in loss.operands] == ["self", "other", "result", "in f64"]
    assert loss.operands[0][1].mean == pytest.approx(1e8, rel=1e-3)
    assert loss.operands[3][1].mean == pytest.approx(0.01, rel=0.2)
    assert "magnifies" in loss.why


def test_an_op_that_rounds_by_itself() -> None:
    class Rounds(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x.abs() + 1).half().cumsum(0)[-1].sum() * x.half().mul(1e-7)

    loss = _first(Rounds(), _input())
    assert loss.op == "mul" and loss.own > 0.01 and "rounding" in loss.why


def test_overflow_in_half_precision() -> None:
    class Squares(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x.half() * 1_000).square().mean()

    loss = _first(Squares(), _input())
    assert loss.op == "pow" and loss.after == float("inf") and "beyond its range" in loss.why


def test_an_error_that_is_inherited_is_not_blamed() -> None:
    heard: dict[str, tuple[float, float, float]] = {}

    def hear(step: Step) -> None:
        heard[step.name] = (step.before(), step.after(), step.own())

    model = nn.Sequential(Variance(), nn.Linear(64, 64), nn.Tanh())
    _follow(model, _input(), hear=hear)
    before, after, own = heard["addmm"]
    assert before > 0.1 and after > 0.1 and own < 1e-5
    assert _first(model, _input()).op == "sub"
    assert "addmm" not in {loss.op for loss in _losses(model, _input()).worst[:1]}


def test_writing_in_place_is_followed() -> None:
    class InPlace(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x * 3.3 + 1e6
            y.view(-1)[::2].sub_(1e6)  # guilty
            return y[:, ::2]

    loss = _first(InPlace(), _input())
    assert loss.op == "sub" and "# guilty" in loss.place.text
    assert loss.operands[0][1].mean == pytest.approx(1e6, rel=1e-3), "as it was before the write"


# --- bounds ---


def test_time_and_memory_are_bounded() -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
    watcher, _ = _follow(model, _input(), seconds=0.0)
    assert "seconds are over" in watcher.ended and watcher.steps < 2
    watcher, _ = _follow(model, _input(), budget=1_000)
    assert "memory" in watcher.ended and not watcher.shadows.nbytes
    room = 64 * 64 * 8 + 4 * 8 * 64 * 8  # of the six weights one at a time: they are cast up again
    watcher, output = _follow(model, _input(), budget=room)
    right = watcher.shadows.of(output)
    assert not watcher.ended and right is not None
    torch.testing.assert_close(right, model.double()(_input().double()), rtol=1e-10, atol=1e-12)


def test_shadows_go_without_the_collector() -> None:
    gc.disable()
    try:
        watcher, output = _follow(nn.Linear(64, 64), _input())
        shadow = weakref.ref(watcher.shadows)
        del watcher, output
        assert shadow() is None
    finally:
        gc.enable()


# --- the command ---


def _said(model: nn.Module, *lines: str, x: Tensor | None = None) -> str:
    console, seen = console_on(model, [*lines])
    with console:
        model(_input() if x is None else x)
    assert seen.bugs == []
    return seen.text


def test_the_answer() -> None:
    text = _said(nn.Sequential(nn.Dropout(0.5), Variance()), "break 1", "continue", "shadow fp64")
    answer = text.partition("(layerstep) shadow fp64\n")[2]
    lines = answer.splitlines()
    assert lines[0].split() == ["sub", "in", "Sequential.1", "loses", "more", "than", "0.001"]
    assert "spread = second - first * first # guilty" in " ".join(lines[1].split())
    assert lines[2].split()[:2] == ["error", "before"]
    assert "where most is lost" in lines
    assert "the output of Sequential.1 is off by" in answer and "does not reach" not in answer


def test_a_loss_that_does_not_matter_says_so() -> None:
    class Centred(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = F.layer_norm(x, (64,))
            return x - x.mean(-1, keepdim=True)

    text = _said(nn.Sequential(Centred()), "break 0", "continue", "shadow fp64")
    words = " ".join(text.split())
    assert "mean in Sequential.0 loses" in words and "what was lost does not reach it" in words


def test_dropout_is_left_out_and_said() -> None:
    text = _said(
        nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 64)), "break 1", "continue", "up", "shadow fp64"
    )
    words = " ".join(text.split())
    assert "no op loses more than 0.001 in f32" in words and "dropout was left out" in words


def test_mistakes() -> None:
    lines = ["shadow", "shadow fp32", "shadow fp64 in 0", "shadow fp64 --tol no", "shadow fp64 --tol 0"]
    text = _said(nn.Sequential(nn.Linear(64, 64), nn.ReLU()), "break 1", "continue", *lines)
    words = " ".join(text.split())
    assert "shadow needs fp64" in words and "no precision 'fp32'; there is fp64" in words
    assert "what 0 was called with is not in view" in words
    assert words.count("--tol is a relative error") == 2
    assert "nothing has stopped yet" in " ".join(_said(nn.Linear(64, 64), "shadow fp64").split())


def test_completion() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    session = DebugConsole(model, commands=[]).session
    assert [each.text for each in complete(session, "shadow f")] == ["fp64"]
    assert [each.text for each in complete(session, "shadow fp64 ")] == ["in", "--tol"]
    assert {each.text for each in complete(session, "shadow fp64 in ")} >= {"0", "Sequential"}


def test_the_tolerance() -> None:
    model = nn.Sequential(nn.Linear(64, 64))
    assert "no op loses more than 1e-5" in _said(model, "break 0", "continue", "shadow fp64 --tol 1e-5")
    assert "loses more than 1e-9" in _said(model, "break 0", "continue", "shadow fp64 --tol 1e-9")


@pytest.mark.parametrize("phase", ["enter", "exit"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gpt2_loses_nothing(dtype: torch.dtype, phase: str) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=96, n_positions=32, n_embd=64, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=1
    )
    model = GPT2LMHeadModel(config).to(dtype)
    lines = [f"break transformer.h.1 {phase}", "continue", "shadow fp64 in GPT2LMHeadModel", "shadow fp64"]
    text = " ".join(_said(model, *lines, x=torch.randint(96, (2, 24))).split())
    limit = {torch.float32: "0.001 in f32", torch.bfloat16: "0.125 in bf16", torch.float16: "0.0156 in f16"}[
        dtype
    ]
    assert f"GPT2LMHeadModel: no op loses more than {limit}" in text
    assert f"transformer.h.1: no op loses more than {limit}" in text
    losses = _losses(model, torch.randint(96, (2, 24)))
    assert losses.largest is not None
    assert losses.largest.after < (1e-3 if dtype is torch.float32 else 0.25)


def test_under_autocast() -> None:
    entry = entry_named("autocast")
    run = play(
        entry, "train", ["break body", "continue", "shadow fp64", "continue", "shadow fp64 in Autocast"]
    )
    words = " ".join(run.seen.text.split())
    assert "body: no op loses more than 0.125 in bf16" in words and run.seen.bugs == []
    assert "Autocast: no op loses more than 0.125 in bf16" in words


def test_the_session_of_the_page() -> None:
    """Its numbers are noise of the processor; what is blamed, and where, is not."""
    lines = ["break norm", "continue", "stability", "shadow fp64", "detach"]
    screen, _ = session_of(script_named("variance"), lines)
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "stability.md").read_text()
    shown, written = " ".join(screen.split()), " ".join(page.split())
    for said in (
        "where what evidence norm cancellation a difference",
        "sub at variance.py:10 variance = (x * x).mean(-1, keepdim=True) - mean * mean",
        "→ a variance as E[x²] - E[x]²: x.var(), or subtract the mean first",
        "norm inp precision 1e4 ± 0.964: 13 of 24 bits are spent on the mean",
        "sub in norm loses more than 0.001 at variance.py:10",
        "it magnifies the error that its operands have; by itself it is exact enough",
        "self f32[8, 1] cpu μ 1e8",
        "where most is lost op layer dtype before after own at",
        "the output of norm is off by",
    ):
        assert said in shown and said in written, said
