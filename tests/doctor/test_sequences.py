"""How models treat tokens is told from a copy: healthy ones of many kinds hear nothing, faults are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerstep.doctor import sequences
from layerstep.doctor.finding import Severity
from layerstep.doctor.sequence_facts import SequenceFacts
from layerstep.doctor.watch import Watch, watching
from token_models import LENGTH, TOKENS, WIDTH, Encoder, TinyGPT, padded, text, train_gpt


class Recurrent(nn.Module):
    """An LSTM that gives an output for each token, or for the last place of the row."""

    def __init__(self, *, both: bool = False, pooled: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH, padding_idx=0)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True, bidirectional=both)
        self.head = nn.Linear(WIDTH * (1 + both), TOKENS)
        self.pooled = pooled

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.lstm(self.embedding(tokens))[0]
        return self.head(states[:, -1] if self.pooled else states)  # type: ignore[no-any-return]


class Packed(Recurrent):
    """Reads each row to its own end."""

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        return self.head(self.lstm(packed)[1][0][-1])  # type: ignore[no-any-return]


class Words(nn.Module):
    """Each token by itself, or the sum of them all."""

    def __init__(self, *, pooled: bool) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(TOKENS, WIDTH, padding_idx=0), nn.Linear(WIDTH, TOKENS)
        self.pooled = pooled

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return self.head(x.sum(1) if self.pooled else x)  # type: ignore[no-any-return]


class Masked(Encoder):
    """Is given its mask: 1 at real tokens."""

    def forward(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:  # type: ignore[override]
        is_real = attention_mask.bool()
        hidden = {"right": ~is_real, "none": None, "inverted": is_real}[self.mask]
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1]))  # type: ignore[misc]
        return self.head(self.encoder(x, src_key_padding_mask=hidden)[:, 0])  # type: ignore[no-any-return]


class Translator(nn.Module):
    """An encoder and a decoder; the decoder must not look ahead, the encoder may."""

    def __init__(self, *, causal: bool = True) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.body = nn.Transformer(WIDTH, 4, 1, 1, 64, 0.1, batch_first=True)
        self.head = nn.Linear(WIDTH, TOKENS)
        self.causal = causal

    def forward(self, source: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        places = self.positions(torch.arange(source.shape[1]))
        x, y = self.embedding(source) + places, self.embedding(target) + places
        return self.head(self.body(x, y, tgt_mask=mask if self.causal else None))  # type: ignore[no-any-return]


class PrefixGPT(TinyGPT):
    """Reads its first ten tokens in both directions; their labels are ignored."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1]))  # type: ignore[misc]
        head = x[:, :10].mean(1, keepdim=True)
        x = torch.cat([x[:, :10] + head, x[:, 10:]], 1)
        return self.head(self.blocks(x))  # type: ignore[no-any-return]


def _loss(out: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(out.reshape(-1, out.shape[-1]), labels.reshape(-1))


def _next(model: nn.Module) -> Tensor:
    tokens = text()
    return _loss(model(tokens[:, :-1]), tokens[:, 1:])


def _same(model: nn.Module) -> Tensor:
    tokens = text()
    return _loss(model(tokens), tokens)


def _class(model: nn.Module) -> Tensor:
    tokens = padded()
    return _loss(model(tokens), (tokens[:, 0] < 20).long())


def _class_by_lengths(model: nn.Module) -> Tensor:
    tokens = padded()
    return _loss(model(tokens, (tokens > 0).sum(1)), (tokens[:, 0] < 20).long())


def _class_by_mask(model: nn.Module) -> Tensor:
    tokens = padded()
    return _loss(model(tokens, attention_mask=(tokens > 0).long()), (tokens[:, 0] < 20).long())


def _next_of_padded(model: nn.Module) -> Tensor:
    tokens = padded()
    return _loss(model(tokens[:, :-1]), torch.where(tokens[:, 1:] > 0, tokens[:, 1:], -100))


def _next_after_prefix(model: nn.Module) -> Tensor:
    tokens = text()
    labels = tokens[:, 1:].clone()
    labels[:, :10] = -100
    return _loss(model(tokens[:, :-1]), labels)


def _next_two(model: nn.Module) -> Tensor:
    tokens = text()
    out = model(tokens)
    return _loss(out[:, :-1], tokens[:, 1:]) + 0.3 * _loss(out[:, :-2], tokens[:, 2:])


def _copy(model: nn.Module) -> Tensor:
    """The batch has as many rows as tokens, and so has the mask."""
    tokens = text(LENGTH)
    before = torch.cat([torch.ones(LENGTH, 1, dtype=torch.long), tokens[:, :-1]], 1)
    mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
    return _loss(model(tokens, before, mask), tokens)


def _left(*, with_mask: bool) -> Callable[[nn.Module], Tensor]:
    """Next-token prediction of texts with padding before them, whose labels are ignored."""

    def step(model: nn.Module) -> Tensor:
        tokens = padded().flip(1)
        labels = torch.where(tokens[:, 1:] > 0, tokens[:, 1:], -100)
        mask = {"attention_mask": (tokens[:, :-1] > 0).long()} if with_mask else {}
        return _loss(model(tokens[:, :-1], **mask), labels)

    return step


class Left(TinyGPT):
    """A causal model for texts with padding before them. `mask`: "right", "none" or "inverted"."""

    def __init__(self, mask: str) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)  # type: ignore[assignment]
        self.mask = mask

    def forward(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        is_real = tokens > 0 if attention_mask is None else attention_mask.bool()
        width = tokens.shape[1]
        seen = torch.ones(width, width, dtype=torch.bool).tril()[None].expand(len(tokens), -1, -1)
        if self.mask != "none":
            shown = is_real if self.mask == "right" else ~is_real
            seen = (seen & shown[:, None]) | torch.eye(width, dtype=torch.bool)
        x = self.embedding(tokens) + self.positions(torch.arange(width))  # type: ignore[misc]
        return self.head(self.blocks(x, mask=~seen.repeat_interleave(4, 0)))  # type: ignore[no-any-return]


class TimeFirst(nn.Module):
    """An LSTM that is given the time in the first dimension, as torch has it by itself."""

    def __init__(self, *, both: bool = False, pooled: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH, padding_idx=0)
        self.lstm = nn.LSTM(WIDTH, WIDTH, bidirectional=both)
        self.head = nn.Linear(WIDTH * (1 + both), TOKENS)
        self.pooled = pooled

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.lstm(self.embedding(tokens))[0]
        return self.head(states[-1] if self.pooled else states)  # type: ignore[no-any-return]


class TimeFirstEncoder(nn.Module):
    """Classifies padded texts that are the columns of its input."""

    def __init__(self, *, has_mask: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH, padding_idx=0)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 2)
        self.has_mask = has_mask

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions(torch.arange(len(tokens)))[:, None]
        hidden = (tokens == 0).t() if self.has_mask else None
        return self.head(self.encoder(x, src_key_padding_mask=hidden)[0])  # type: ignore[no-any-return]


def _next_by_time(model: nn.Module) -> Tensor:
    tokens = text(24).t()
    return _loss(model(tokens[:-1]), tokens[1:])


def _class_by_time(model: nn.Module) -> Tensor:
    tokens = padded(24).t()
    return _loss(model(tokens), (tokens[0] < 20).long())


def _watched(make: Callable[[], nn.Module], step: Callable[[nn.Module], Tensor]) -> Watch:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    with watching("extreme") as watch:
        model = make()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        for _ in range(12):
            loss = step(model)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return watch


def _facts(watch: Watch) -> SequenceFacts:
    facts = watch.doctor.diagnosis.run.sequence
    assert facts is not None and not facts.skipped, facts
    return facts


HEALTHY: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Tensor]]] = {
    "gpt": (TinyGPT, _next),
    "gpt in bfloat16": (lambda: TinyGPT().bfloat16(), _next),
    "gpt on padded texts": (TinyGPT, _next_of_padded),
    "gpt that also predicts the token after next": (TinyGPT, _next_two),
    "gpt that reads its prefix both ways": (PrefixGPT, _next_after_prefix),
    "gpt without positions": (lambda: TinyGPT(positions=False), _next),
    "lstm": (Recurrent, _next),
    "bigrams": (lambda: Words(pooled=False), _next),
    "autoencoder of single tokens": (lambda: Words(pooled=False), _same),
    "autoencoder that reads both ways": (lambda: Recurrent(both=True), _same),
    "bag of words": (lambda: Words(pooled=True), _class),
    "lstm over padding": (lambda: Recurrent(pooled=True), _class),
    "packed lstm": (lambda: Packed(pooled=True), _class_by_lengths),
    "encoder": (Encoder, _class),
    "encoder with a mask": (Masked, _class_by_mask),
    "encoder and decoder": (Translator, _copy),
    "lstm, time first": (TimeFirst, _next_by_time),
    "encoder, time first": (lambda: TimeFirstEncoder(has_mask=True), _class_by_time),
    "padding before the texts, with a mask": (lambda: Left("right"), _left(with_mask=True)),
    "padding before the texts, known by its token": (lambda: Left("right"), _left(with_mask=False)),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_model_of_tokens_hears_nothing(name: str) -> None:
    watch = _watched(*HEALTHY[name])
    assert _facts(watch)
    assert not [each for each in watch.findings if each.severity.rank >= Severity.WARNING.rank]


FAULTS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Tensor], str, str]] = {
    "no mask": (lambda: TinyGPT(ahead=99), _next, "causality-leak", "blocks.0.attention"),
    "both directions": (lambda: Recurrent(both=True), _next, "causality-leak", "lstm"),
    "decoder": (lambda: Translator(causal=False), _copy, "causality-leak", "body.decoder.layers.0.self_attn"),
    "copies": (Recurrent, _same, "labels-not-shifted", ""),
    "mask not passed on": (lambda: Masked("none"), _class_by_mask, "padding-attended", "self_attn"),
    "mask inverted": (lambda: Masked("inverted"), _class_by_mask, "mask-inverted", "self_attn"),
    "both directions, time first": (lambda: TimeFirst(both=True), _next_by_time, "causality-leak", "lstm"),
    "mask not passed on, time first": (
        lambda: TimeFirstEncoder(has_mask=False),
        _class_by_time,
        "padding-attended",
        "self_attn",
    ),
    "padding before, attended to": (
        lambda: Left("none"),
        _left(with_mask=True),
        "padding-attended",
        "self_attn",
    ),
    "padding before, known by labels": (
        lambda: Left("none"),
        _left(with_mask=False),
        "padding-attended",
        "self_attn",
    ),
    "encoder without positions": (lambda: Encoder(positions=False), _class, "order-ignored", "embedding"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_its_module(name: str) -> None:
    make, step, rule, module = FAULTS[name]
    findings = _watched(make, step).findings
    assert [each.rule for each in findings] == [rule]
    assert findings[0].where.module.endswith(module)


def test_padding_that_a_recurrent_model_reads_is_a_note() -> None:
    [found] = _watched(lambda: Recurrent(pooled=True), _class).findings
    assert found.rule == "padding-attended" and found.severity is Severity.INFO


def test_padding_that_comes_later_is_still_tried() -> None:
    batches = iter(range(100))

    def step(model: nn.Module) -> Tensor:
        tokens = text() if next(batches) < 4 else padded()
        return _loss(model(tokens), (tokens[:, 0] < 20).long())

    watch = _watched(lambda: Encoder("none"), step)
    assert [each.rule for each in watch.findings] == ["padding-attended"]


def test_a_model_that_is_too_large_is_left_out_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "MOST_BYTES", 1000)
    with watching("extreme") as watch:
        train_gpt(TinyGPT(ahead=1), steps=5)
        [line] = watch.doctor.cost()
    assert "how it treats tokens was not tried: its parameters take" in line
    assert not watch.findings


def test_a_model_that_fails_on_one_row_is_left_out_and_it_is_said() -> None:
    class Picky(TinyGPT):
        def forward(self, tokens: Tensor) -> Tensor:
            assert len(tokens) == 16, "a batch has 16 rows"
            return super().forward(tokens)

    watch = _watched(Picky, _next)
    facts: Any = watch.doctor.diagnosis.run.sequence
    assert facts.skipped == "a copy did not take one row: AssertionError: a batch has 16 rows"
    assert not watch.findings
