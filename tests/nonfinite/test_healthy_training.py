"""Healthy training gives no alarm, is bit-equal under a catchpoint, and leaves nothing behind."""

from __future__ import annotations

import gc
import io
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerstep import DebugConsole
from layerstep.nonfinite.catching import search_of
from zoo import global_state

Step = Callable[[], Tensor]
Maker = Callable[[], tuple[nn.Module, Step]]


def gpt2() -> tuple[nn.Module, Step]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=16)
    model = GPT2LMHeadModel(config)

    def step() -> Tensor:
        ids = torch.randint(50, (2, 8))
        mask = torch.ones(2, 8, dtype=torch.long)
        mask[0, :3] = 0
        return model(input_ids=ids, attention_mask=mask, labels=ids).loss

    return model, step


def bert() -> tuple[nn.Module, Step]:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        num_hidden_layers=2, hidden_size=16, num_attention_heads=2, intermediate_size=32, vocab_size=50
    )
    model = BertModel(config)

    def step() -> Tensor:
        mask = torch.ones(2, 8, dtype=torch.long)
        mask[1, 5:] = 0
        out = model(input_ids=torch.randint(50, (2, 8)), attention_mask=mask)
        return out.last_hidden_state.square().mean() + out.pooler_output.mean()

    return model, step


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)) + x)


def resnet() -> tuple[nn.Module, Step]:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), Residual(8), Residual(8), nn.Flatten(), nn.LazyLinear(4))
    model(torch.randn(2, 3, 8, 8))

    def step() -> Tensor:
        return F.cross_entropy(model(torch.randn(4, 3, 8, 8)), torch.randint(4, (4,)))

    return model, step


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 8, batch_first=True, num_layers=2, dropout=0.2)
        self.head = nn.Linear(8, 20)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(ids), lengths, batch_first=True)
        hidden, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.head(hidden)


def lstm() -> tuple[nn.Module, Step]:
    model = Recurrent()

    def step() -> Tensor:
        ids = torch.randint(20, (2, 6))
        return F.cross_entropy(model(ids, torch.tensor([6, 4])).flatten(0, 1), ids.flatten())

    return model, step


class Masked(nn.Module):
    """Attention by hand, with -inf in its mask and in what it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 20)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids)
        mask = torch.full((ids.shape[1],) * 2, float("-inf")).triu(1)
        weights = F.dropout((h @ h.transpose(1, 2) + mask).softmax(-1), 0.1)
        logits = self.head(weights @ h)
        logits[..., 0] = float("-inf")
        return logits


def masked() -> tuple[nn.Module, Step]:
    model = Masked()

    def step() -> Tensor:
        ids = torch.randint(1, 20, (2, 6))
        return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())

    return model, step


MODELS = [gpt2, bert, resnet, lstm, masked]


def train(make: Maker, commands: list[str], steps: int) -> tuple[Any, Any, str]:
    torch.manual_seed(0)
    model, step = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    screen = io.StringIO()
    console = DebugConsole(model, commands=commands, output=screen)
    losses = []
    with console:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = step()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().clone())
    state = {name: value.clone() for name, value in model.state_dict().items()}
    state |= {f"{name}.grad": p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return (losses, state, torch.get_rng_state()), console, screen.getvalue()


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_fifty_healthy_steps_are_silent_and_bit_equal(make: Maker) -> None:
    bare, _, _ = train(make, [], 50)
    caught, console, screen = train(make, ["catch nonfinite", "continue"], 50)
    assert search_of(console.session).found is None, screen
    assert all(point.hits == 0 for point in console.session.points), screen
    for before, after in zip(bare[0], caught[0], strict=True):
        assert torch.equal(before, after)
    assert bare[1].keys() == caught[1].keys()
    for name, value in bare[1].items():
        assert torch.equal(value, caught[1][name]), name
    assert torch.equal(bare[2], caught[2])


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_the_check_of_every_op_is_silent_and_bit_equal(make: Maker) -> None:
    bare, _, _ = train(make, [], 3)
    caught, console, screen = train(make, ["catch nonfinite --every-op", "continue"], 3)
    assert search_of(console.session).found is None, screen
    for name, value in bare[1].items():
        assert torch.equal(value, caught[1][name]), name
    assert torch.equal(bare[2], caught[2])


def test_a_mask_that_is_returned_is_told_once() -> None:
    _, _, screen = train(masked, ["catch nonfinite", "continue"], 5)
    assert screen.count("written on purpose") == 1


def test_nothing_is_left_on_torch() -> None:
    before = global_state()
    backward = torch.autograd.backward
    train(gpt2, ["catch nonfinite", "catch nan --every-op", "continue"], 2)
    assert torch.autograd.backward is backward
    assert global_state() == before


def test_no_graph_is_kept_of_forwards_without_a_backward() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    console = DebugConsole(model, commands=["catch nonfinite", "continue"], output=io.StringIO())
    alive: list[weakref.ref[Any]] = []
    with console:
        for _ in range(6):
            hidden = model[0](torch.randn(2, 4))
            kept = hidden.tanh()
            alive.append(weakref.ref(kept))
            model(kept)
            del hidden, kept
        gc.collect()
        assert sum(each() is not None for each in alive) <= 1


def test_somebody_elses_backward_on_top_of_ours_stays() -> None:
    model = nn.Linear(2, 2)
    before = torch.autograd.backward
    console = DebugConsole(model, commands=["catch nonfinite", "continue"], output=io.StringIO())
    calls = []
    with console:
        ours = torch.autograd.backward
        assert ours is not before

        def theirs(*args: Any, **kwargs: Any) -> None:
            calls.append(1)
            ours(*args, **kwargs)

        torch.autograd.backward = theirs
        model(torch.ones(1, 2)).sum().backward()
    try:
        assert torch.autograd.backward is theirs
        model(torch.ones(1, 2)).sum().backward()
        assert calls == [1, 1]
    finally:
        torch.autograd.backward = before


def test_a_backward_from_edges_and_tuples() -> None:
    model = nn.Linear(2, 2)
    console = DebugConsole(model, commands=["catch nonfinite", "continue"], output=io.StringIO())
    with console:
        loss = model(torch.ones(1, 2)).sum()
        torch.autograd.backward((loss,), (torch.ones(()),), retain_graph=True)
        torch.autograd.backward(torch.autograd.graph.get_gradient_edge(loss), torch.ones(()))
        assert console.session.run.is_attached


@pytest.mark.filterwarnings("ignore")
def test_other_models_and_compiled_losses_between_forward_and_backward_are_left_alone() -> None:
    """A function mode there would make a fused layer leave its kernel, and dynamo compile again."""
    counters = pytest.importorskip("torch._dynamo.utils").counters
    model = nn.Linear(4, 4)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x, padding = torch.randn(2, 5, 8), torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 1]]).bool()

    @torch.compile(backend="eager")
    def loss_of(out: Tensor) -> Tensor:
        return (out.softmax(-1) * out).sum().exp()

    def train() -> tuple[Tensor, Tensor, int]:
        out = model(torch.ones(2, 4))
        with torch.no_grad():
            other = encoder(x, src_key_padding_mask=padding)
        loss = loss_of(out)
        loss.backward()
        return other, loss.detach(), counters["stats"]["unique_graphs"]

    bare = train()
    console = DebugConsole(model, commands=["catch nonfinite", "continue"], output=io.StringIO())
    with console:
        caught = [train() for _ in range(3)]
    for other, loss, graphs in caught:
        assert torch.equal(other, bare[0])
        assert torch.equal(loss, bare[1])
        assert graphs == bare[2]


def test_forwards_without_a_backward_and_blocks_of_inference_leave_a_clean_stack() -> None:
    model = nn.Linear(4, 4)
    console = DebugConsole(model, commands=["catch nonfinite", "continue"], output=io.StringIO())
    with console:
        for _ in range(3):
            model(torch.ones(2, 4)).sum()
            with torch.inference_mode():
                model(torch.ones(2, 4)).sum()
            model(torch.ones(2, 4)).sum().backward()
        model(torch.ones(2, 4)).sum()
        with torch.inference_mode():
            torch.ones(2) + 1
    assert torch._C._len_torch_dispatch_stack() == 0
    assert console.session.prompt is not None
    torch.ones(2) + 1


def test_detach_at_a_stop_leaves_the_stack_after_the_next_operation() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    lines = ["catch nonfinite", "break 1", "continue", "continue", "detach"]
    console = DebugConsole(model, commands=lines, output=io.StringIO())
    with console:
        model(torch.ones(2, 4)).sum()
        assert torch._C._len_torch_dispatch_stack() == 1
        model(torch.ones(2, 4))
        torch.ones(2) + 1
        assert torch._C._len_torch_dispatch_stack() == 0
