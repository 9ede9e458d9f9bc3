"""What `attention` sees of any module: the weights, against those the models themselves give out."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerstep import DebugConsole
from layerstep.render.screen import to_text
from layerstep.views import Group, Notice, Plot, Table, View


@dataclass
class Answer:
    """What one `attention` answered, and the weights it kept."""

    view: View
    weights: Tensor | None = None

    @property
    def text(self) -> str:
        return " ".join(to_text(self.view, width=100).split())

    @property
    def heads(self) -> Table:
        return next(view for view in _flat(self.view) if isinstance(view, Table))

    @property
    def maps(self) -> list[Plot]:
        return [view for view in _flat(self.view) if isinstance(view, Plot)]


def _flat(view: View) -> list[View]:
    return [part for one in view.views for part in _flat(one)] if isinstance(view, Group) else [view]


def ask(model: nn.Module, lines: Sequence[str], *args: Any, **kwargs: Any) -> list[Answer]:
    """Type lines while the model runs once without gradients; what each `attention` among them answered."""
    console = DebugConsole(model, commands=list(lines), output=io.StringIO())
    answers: list[Answer] = []

    def note(message: Any) -> None:
        if message.line.startswith("attention") and message.kind == "answer":
            answer = Answer(message.view)
            if "kept as $" in answer.text:
                answer.weights = console.session.run.results[-1]
            answers.append(answer)

    console.session.listen(note)
    with torch.no_grad(), console:
        model(*args, **kwargs)
    assert answers
    return answers


def ask_at(path: str, model: nn.Module, *args: Any, **kwargs: Any) -> Answer:
    return ask(model, [f"break {path}", "continue", "attention", "detach"], *args, **kwargs)[0]


def gpt2(implementation: str, **options: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    small = {"vocab_size": 31, "n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2, **options}
    config = GPT2Config(**small, bos_token_id=0, eos_token_id=1, attn_implementation=implementation)
    return GPT2LMHeadModel(config).eval()


def bert(implementation: str) -> Any:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    small = {"vocab_size": 31, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    return BertModel(BertConfig(**small, intermediate_size=16, attn_implementation=implementation)).eval()


def llama(implementation: str) -> Any:
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    small = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaModel(LlamaConfig(**small, **heads, attn_implementation=implementation)).eval()


TOKENS = torch.tensor([[3, 4, 5, 6, 7, 8, 9], [9, 8, 7, 6, 5, 4, 3]])
PADDED = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])

KINDS = {
    "gpt2": (gpt2, "h.1.attn"),
    "bert": (bert, "layer.1.attention.self"),
    "llama": (llama, "layers.1.self_attn"),
}


@pytest.mark.parametrize("mask", [None, PADDED], ids=["whole", "padded"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_equals_what_transformers_gives_out(kind: str, implementation: str, mask: Tensor | None) -> None:
    build, path = KINDS[kind]
    with torch.no_grad():
        expected = build("eager")(TOKENS, attention_mask=mask, output_attentions=True).attentions[1]
    answer = ask_at(path, build(implementation), TOKENS, attention_mask=mask)
    assert answer.weights is not None
    assert torch.allclose(answer.weights, expected, rtol=0, atol=1e-6)
    assert f"{implementation}, batch 2" in answer.text
    assert "checked: the rerun gives its output bit for bit" in answer.text
    assert ("not causal" in answer.text) == (kind == "bert")
    assert ("kernel's to" in answer.text) == (implementation == "sdpa")


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("phase", ["exit", "enter"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_cache_in_use_is_neither_doubled_nor_touched(kind: str, implementation: str, phase: str) -> None:
    build, path = KINDS[kind]
    with torch.no_grad():
        first = build("eager")(TOKENS[:, :5], use_cache=True).past_key_values
        expected = build("eager")(TOKENS[:, 5:], past_key_values=first, output_attentions=True).attentions[1]
        model, bare = build(implementation), build(implementation)
        cache, same = (one(TOKENS[:, :5], use_cache=True).past_key_values for one in (model, bare))
        bare(TOKENS[:, 5:], past_key_values=same)
    lines = [f"break {path} {phase}", "continue", "attention", "attention", "detach"]
    once, again = ask(model, lines, TOKENS[:, 5:], past_key_values=cache)
    for answer in (once, again):
        assert answer.weights is not None
        assert answer.weights.shape == (2, expected.shape[1], 2, 7)
        assert torch.allclose(answer.weights, expected, rtol=0, atol=1e-6)
        assert "2 queries × 7 keys, causal" in answer.text
        assert ("checked: the rerun gives its output" in answer.text) == (phase == "exit")
    assert cache.get_seq_length() == 7
    assert torch.equal(cache.layers[1].keys, same.layers[1].keys)


def t5(implementation: str) -> Any:
    from transformers import T5Config, T5Model

    torch.manual_seed(0)
    small = {"vocab_size": 31, "d_model": 16, "d_kv": 8, "num_layers": 1, "num_heads": 2, "d_ff": 16}
    return T5Model(T5Config(**small, attn_implementation=implementation)).eval()


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize(
    "part", ["decoder.block.0.layer.0.SelfAttention", "decoder.block.0.layer.1.EncDecAttention"]
)
def test_an_encoder_and_a_decoder(part: str, implementation: str) -> None:
    """T5 asks its cache for its length, and a cross-attention finds its keys in there."""
    given = {"input_ids": TOKENS, "decoder_input_ids": TOKENS[:, :4]}
    with torch.no_grad():
        out = t5("eager")(**given, output_attentions=True)
    expected = out.decoder_attentions[0] if "Self" in part else out.cross_attentions[0]
    answer = ask_at(part, t5(implementation), **given)
    assert answer.weights is not None
    assert torch.allclose(answer.weights, expected, rtol=0, atol=1e-6)
    assert "checked: the rerun gives its output bit for bit" in answer.text
    assert (", across" in answer.text) == ("EncDec" in part)


def test_a_cache_that_keeps_a_window_only() -> None:
    from transformers import MistralConfig, MistralModel

    torch.manual_seed(0)
    small = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 3}
    model = MistralModel(MistralConfig(**small, **heads)).eval()
    first = ask_at("layers.0.self_attn", model, TOKENS)
    assert "causal, window 3" in first.text and "checked: the rerun gives its output" in first.text
    answers = []
    for phase in ("enter", "exit"):
        with torch.no_grad():
            cache = model(TOKENS, use_cache=True).past_key_values
        lines = [f"break self_attn {phase}", "continue", "attention", "detach"]
        answers += ask(model, lines, TOKENS[:, :1], past_key_values=cache)
    entering, leaving = answers
    assert "1 queries × 3 keys" in entering.text
    assert "its cache keeps a window only" in leaving.text


class Continuing(nn.Module):
    """A model whose cache the debugger has not seen when the outermost call began."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Tensor, known: int) -> Any:
        cache = self.inner(tokens[:, :known], use_cache=True).past_key_values
        return self.inner(tokens[:, known:], past_key_values=cache)


def test_in_the_middle_of_a_model_with_a_cache_nothing_is_guessed() -> None:
    model = gpt2("sdpa")
    with torch.no_grad():
        cache = model(TOKENS[:, :5], use_cache=True).past_key_values
        expected = gpt2("eager")(TOKENS, output_attentions=True).attentions
    lines = ["break h.1.mlp", "continue", "attention h.1", "attention transformer", "detach"]
    block, whole = ask(model, lines, TOKENS[:, 5:], past_key_values=cache)
    assert "2 queries × 7 keys, causal" in block.text
    assert "transformer.h.0.attn sdpa, batch 2, 2 heads × 2 queries × 7 keys, causal" in whole.text
    assert whole.weights is not None
    assert any(torch.allclose(whole.weights, each[..., 5:, :], rtol=0, atol=1e-6) for each in expected)
    lines = [
        "break h.1.mlp",
        "continue",
        "continue",
        "attention h.1",
        "attention inner.transformer",
        "detach",
    ]
    block, unseen = ask(Continuing(model), lines, TOKENS, 5)
    assert "2 queries × 7 keys, causal" in block.text
    assert "the length of its cache is not known" in unseen.text


def test_dropout_in_the_run_is_said_and_the_weights_are_without() -> None:
    for implementation in ("eager", "sdpa"):
        answer = ask_at("h.1.attn", gpt2(implementation, attn_pdrop=0.5).train(), TOKENS)
        assert answer.weights is not None
        assert torch.allclose(answer.weights.sum(-1), torch.ones(2, 2, 7))
        assert "not checked with its output, which had dropout" in answer.text


class Attending(nn.Module):
    """A module around one attention, so that it has a path."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masked", ["", "padding", "causal", "both"])
def test_multihead_attention(need_weights: bool, batch_first: bool, masked: str) -> None:
    torch.manual_seed(0)
    mha = nn.MultiheadAttention(8, 2, batch_first=batch_first).eval()
    x = torch.randn(3, 5, 8) if batch_first else torch.randn(5, 3, 8)
    kwargs: dict[str, Any] = {}
    if masked in ("padding", "both"):
        kwargs["key_padding_mask"] = torch.tensor(
            [[False] * 5, [False] * 4 + [True], [False] * 3 + [True] * 2]
        )
    if masked in ("causal", "both"):
        kwargs["attn_mask"] = torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected = mha(x, x, x, average_attn_weights=False, **kwargs)[1]
    answer = ask_at("inner", Attending(mha), x, x, x, need_weights=need_weights, **kwargs)
    assert answer.weights is not None
    assert torch.allclose(answer.weights, expected, rtol=0, atol=1e-6)
    assert "mha, batch 3, 2 heads × 5 queries × 5 keys" in answer.text
    assert "checked: the rerun gives its output" in answer.text
    assert (", causal" in answer.text) == (masked in ("causal", "both"))
    padding = [row[7] for row in answer.heads.rows]
    assert padding == (["0%"] * 2 if masked in ("padding", "both") else ["-"] * 2)


def test_cross_attention_has_no_positions() -> None:
    torch.manual_seed(0)
    mha = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    answer = ask_at("inner", Attending(mha), torch.randn(1, 4, 8), memory := torch.randn(1, 4, 8), memory)
    assert ", across" in answer.text
    assert [row[4:7] for row in answer.heads.rows] == [("-", "-", "-")] * 2


def test_a_fused_encoder_layer_shows_its_attention() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    expected = layer.self_attn(x, x, x, average_attn_weights=False)[1]
    answer = ask_at("inner", Attending(layer), x)
    assert answer.weights is not None
    assert torch.allclose(answer.weights, expected, atol=1e-6)
    assert "inner.self_attn mha" in answer.text and "checked" in answer.text


class Plain(nn.Module):
    """softmax(QK) in one of the ways people write it."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.qkv = nn.Linear(8, 24)
        self.gates = nn.Parameter(torch.randn(8, 8))

    def parts(self, x: Tensor) -> list[Tensor]:
        return [part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)]

    def weights(self, x: Tensor) -> Tensor:
        q, k, _ = self.parts(x)
        return (q @ k.mT / 2).softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(x)
        x = x.softmax(-1) @ self.gates  # no attention: what it chooses from is learned
        if self.form == "matmul":
            mixed = torch.softmax(torch.matmul(q, k.mT) / 2, dim=-1).to(v.dtype) @ v
        elif self.form == "functional":
            mixed = F.dropout(F.softmax(q @ k.mT / 2, dim=3), 0.1, self.training) @ v
        elif self.form == "bmm":
            flat = [part.flatten(0, 1) for part in (q, k, v)]
            weights = torch.baddbmm(torch.zeros(1), flat[0], flat[1].mT, alpha=0.5).softmax(2)
            mixed = torch.bmm(weights, flat[2]).unflatten(0, (-1, 2))
        elif self.form == "einsum":
            scores = torch.einsum("bhqd,bhkd->bqhk", q, k) / 2
            mixed = torch.einsum("bqhk,bhkd->bhqd", scores.softmax(-1), v)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, scale=0.5)
        return x + mixed.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("form", ["matmul", "functional", "bmm", "einsum", "sdpa"])
def test_a_module_of_the_users_own(form: str) -> None:
    torch.manual_seed(0)
    model = Attending(Plain(form)).eval()
    x = torch.randn(3, 5, 8)
    answer = ask_at("inner", model, x)
    assert answer.weights is not None
    assert torch.allclose(answer.weights, model.inner.weights(x), atol=1e-6)  # type: ignore[operator]
    assert "checked: the rerun gives its output bit for bit" in answer.text


@pytest.mark.parametrize("mask", ["bool", "float", "causal"])
def test_sdpa_with_fewer_key_heads_and_a_mask(mask: str) -> None:
    class Grouped(nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            window = torch.ones(6, 6, dtype=torch.bool).tril().triu(-2)
            given: Any = {
                "causal": None,
                "bool": window,
                "float": torch.zeros(6, 6).masked_fill(~window, -1e4),
            }
            return F.scaled_dot_product_attention(
                q, k, k, attn_mask=given[mask], is_causal=mask == "causal", enable_gqa=True
            )

    torch.manual_seed(0)
    q, k = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8)
    answer = ask_at("inner", Attending(Grouped()), q, k)
    seen = torch.ones(6, 6, dtype=torch.bool).tril().triu(-5 if mask == "causal" else -2)
    scores = q @ k.repeat_interleave(2, 1).mT / math.sqrt(8)
    assert answer.weights is not None
    assert torch.allclose(answer.weights, scores.masked_fill(~seen, -math.inf).softmax(-1), atol=1e-6)
    assert ("causal, window 3" in answer.text) == (mask != "causal")


def test_one_head_is_worked_out_where_all_would_be_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("layerstep.attention.capture.MOST_ELEMENTS", 60)
    model = Attending(Plain("sdpa")).eval()
    x = torch.randn(3, 5, 8)
    lines = [
        "break inner",
        "continue",
        "attention",
        "attention --head 1 --batch 2",
        "attention --head 7 --batch 0",
    ]
    refused, one, wrong = ask(model, [*lines, "detach"], x)
    assert "too many: 3 × 2 × 5 × 5" in refused.text and "--head N" in refused.text
    assert one.weights is not None
    assert torch.allclose(one.weights, model.inner.weights(x)[2:, 1:], atol=1e-6)  # type: ignore[operator]
    assert one.heads.rows[0][0] == "1" and one.maps[0].title == "head 1, batch 2"
    assert "there is no head 7; there are 0 to 1" in wrong.text


def test_choosing_and_naming() -> None:
    model = gpt2("sdpa")
    words = " ".join("abcdefg")
    lines = [
        "break h.1.attn",
        "continue",
        f'attention --head 1 --batch 1 --tokens "{words}"',
        "attention --tokens [3, 4, 5, 6, 7, 8, 9]",
        "attention --head 2",
        "attention --tokens 7",
        "attention h.1.ln_1",
        "attention nosuch",
        "detach",
    ]
    chosen, ids, *wrong = ask(model, lines, TOKENS)
    (plot,) = chosen.maps
    assert plot.names == plot.labels == tuple("abcdefg") and plot.title == "head 1, batch 1"
    assert chosen.weights is not None
    assert torch.allclose(torch.tensor(plot.values), chosen.weights[1, 1])
    assert [len(row) for row in chosen.heads.rows] == [10]
    assert ids.maps[1].labels == tuple("3456789")
    assert "there is no head 2; there are 0 to 1" in wrong[0].text
    assert "--tokens is text or a list, not a int" in wrong[1].text
    for answer in wrong:
        assert isinstance(answer.view, Notice) and answer.view.level == "error"


def test_a_block_shows_those_inside_and_a_stop_inside_shows_the_one_above() -> None:
    inside = ask_at("h.1.attn.c_attn", gpt2("sdpa"), TOKENS)
    assert "h.1.attn sdpa" in inside.text and "it has not finished" in inside.text
    block = ask(
        gpt2("eager"), ["break transformer", "continue", "attention", "attention h", "detach"], TOKENS
    )
    assert "h.0.attn eager" in block[0].text and "h.1.attn eager" in block[0].text
    assert "nothing of h is in view" in block[1].text


def test_several_recorded_ones() -> None:
    looks = ["attention h.*.attn", "attention h.0", "attention **.c_proj"]
    lines = ["record h.*.attn --tensors", "break ln_f", "continue", *looks, "detach"]
    every, first, none = ask(gpt2("eager", n_layer=6), lines, TOKENS)
    assert every.text.count("heads ×") == every.text.count("checked: the rerun") == 4
    assert "there are more, left out here" in every.text and not every.maps
    assert "h.0.attn eager" in first.text and len(first.maps) == 2
    assert "nothing of **.c_proj is in view" in none.text


def test_a_module_without_attention_says_so() -> None:
    answer = ask_at("0", nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1), nn.Linear(4, 4)), torch.randn(2, 4))
    assert "no attention was seen at this stop" in answer.text


def test_a_module_that_fails_on_a_rerun_is_one_line() -> None:
    class Once(nn.Module):
        calls: list[int] = []  # noqa: RUF012  (a class attribute is not put back)

        def forward(self, x: Tensor) -> Tensor:
            self.calls.append(1)
            if len(self.calls) > 1:
                raise RuntimeError("only once")
            return x

    answer = ask_at("inner", Attending(Once()), torch.randn(2, 4))
    assert "inner cannot be rerun: only once" in answer.text


def test_inputs_that_changed_since_are_noticed() -> None:
    class Careless(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            out = x.softmax(-1) @ x
            x += 1
            return out

    answer = ask_at("inner", Attending(Careless()), torch.randn(2, 5, 5))
    assert "not to be trusted: the rerun differs from its output" in answer.text
