"""Models written a second time, with other names and other cuts, and with one difference on request.

Each `mine_from_…` takes a model of transformers and returns the same function as other code. `fault` plants
one difference, in the layer `at`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

# --- GPT-2: split q, k, v; Linear for Conv1D; no wrapper around the blocks ---


def gpt2(layers: int = 3) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(n_layer=layers, n_head=4, n_embd=32, vocab_size=100, n_positions=32)
    return _varied(GPT2LMHeadModel(config).eval())


def _varied(model: nn.Module) -> nn.Module:
    """No two layers alike, and no norm that does nothing."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return model


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, fault: str) -> None:
        super().__init__()
        self.heads, self.fault = heads, fault
        self.q, self.k, self.v, self.proj = (nn.Linear(width, width) for _ in range(4))

    def _split(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        if self.fault == "head split":
            return x.view(batch, length, width // self.heads, self.heads).permute(0, 3, 1, 2)
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (self._split(layer(x)) for layer in (self.q, self.k, self.v))
        scale = 1.0 if self.fault == "scale" else math.sqrt(width // self.heads)
        scores = q @ k.transpose(-1, -2) / scale
        seen = torch.ones(length, length).tril(1 if self.fault == "causal" else 0) == 1
        weights = scores.masked_fill(~seen, -1e30).softmax(-1)
        if self.fault == "softmax axis":
            weights = scores.masked_fill(~seen, -1e30).softmax(-2)
        return self.proj((weights @ v).transpose(1, 2).reshape(batch, length, width))


class FusedAttention(Attention):
    """The same by torch's own kernel."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self._split(layer(x)) for layer in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(mixed.transpose(1, 2).reshape(x.shape))


class Feed(nn.Module):
    def __init__(self, width: int, fault: str) -> None:
        super().__init__()
        acts = {"relu": nn.ReLU(), "erf": nn.GELU(), "quick": _Quick()}
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.act = acts.get(fault, nn.GELU(approximate="tanh"))
        self.drop = nn.Dropout(0.3)
        if fault == "dropout":
            self.drop.train()

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.down(self.act(self.up(x))))


class InlineFeed(Feed):
    """The same without a module for the activation."""

    def __init__(self, width: int, fault: str) -> None:
        super().__init__(width, "")
        del self.act, self.drop
        self.approximate = "none" if fault == "erf" else "tanh"

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate=self.approximate))


class _Quick(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, fault: str, *, fused: bool, inline: bool) -> None:
        super().__init__()
        self.fault = fault
        self.norm_a = nn.LayerNorm(width, eps=1e-6 if fault == "tiny eps" else 1e-5)
        self.norm_m = nn.LayerNorm(width, eps=1e-3 if fault == "eps" else 1e-5)
        self.attention = (FusedAttention if fused else Attention)(width, heads, fault)
        self.ffn = (InlineFeed if inline else Feed)(width, fault)

    def forward(self, x: Tensor) -> Tensor:
        if self.fault == "norm order":
            x = self.norm_a(x + self.attention(x))
        elif self.fault == "norm after":
            x = x + self.norm_a(self.attention(x))
        else:
            x = x + self.attention(self.norm_a(x))
        if self.fault == "no residual":
            return self.ffn(self.norm_m(x))
        return x + (0.5 if self.fault == "residual scale" else 1.0) * self.ffn(self.norm_m(x))


class Mine(nn.Module):
    def __init__(self, config: GPT2Config, fault: str, at: int, *, fused: bool, inline: bool) -> None:
        super().__init__()
        self.fault = fault
        self.tok = nn.Embedding(config.vocab_size, config.n_embd)
        self.pos = nn.Embedding(config.n_positions, config.n_embd)
        self.layers = nn.ModuleList(
            Layer(config.n_embd, config.n_head, fault if i == at else "", fused=fused, inline=inline)
            for i in range(config.n_layer)
        )
        self.final = nn.LayerNorm(config.n_embd)
        self.out = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1]) + (1 if self.fault == "position" else 0)
        x = self.tok(ids) + self.pos(places)
        if self.fault == "embedding scale":
            x = x * math.sqrt(x.shape[-1])
        for layer in self.layers:
            x = layer(x)
        return self.out(x if self.fault == "no final norm" else self.final(x))


def mine_from_gpt2(
    hf: GPT2LMHeadModel, fault: str = "", at: int = 1, *, fused: bool = False, inline: bool = False
) -> nn.Module:
    mine = Mine(hf.config, fault, at, fused=fused, inline=inline).eval()
    if fault == "dropout":
        mine.layers[at].ffn.drop.train()
    theirs = hf.transformer
    with torch.no_grad():
        mine.tok.weight.copy_(theirs.wte.weight)
        mine.pos.weight.copy_(theirs.wpe.weight)
        mine.final.load_state_dict(theirs.ln_f.state_dict())
        mine.out.weight.copy_(hf.lm_head.weight)
        for a, b in zip(mine.layers, theirs.h, strict=True):
            a.norm_a.load_state_dict(b.ln_1.state_dict())
            a.norm_m.load_state_dict(b.ln_2.state_dict())
            width = hf.config.n_embd
            weights, biases = b.attn.c_attn.weight.split(width, 1), b.attn.c_attn.bias.split(width)
            for linear, weight, bias in zip(
                (a.attention.q, a.attention.k, a.attention.v), weights, biases, strict=True
            ):
                linear.weight.copy_(weight.T)
                linear.bias.copy_(bias)
            for linear, conv in (
                (a.attention.proj, b.attn.c_proj),
                (a.ffn.up, b.mlp.c_fc),
                (a.ffn.down, b.mlp.c_proj),
            ):
                linear.weight.copy_(conv.weight.T)
                linear.bias.copy_(conv.bias)
        if fault == "weight":
            mine.layers[at].ffn.up.weight[5, 7] += 0.5
        if fault == "key weight":
            mine.layers[at].attention.k.weight[5, 7] += 0.5
        if fault == "bias":
            mine.layers[at].ffn.down.bias.zero_()
        if fault == "not transposed":
            mine.layers[at].attention.proj.weight.copy_(theirs.h[at].attn.c_proj.weight)
    return mine


# --- Llama: merged q, k, v and merged gate and up; RoPE in the attention ---


def llama() -> LlamaForCausalLM:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        rms_norm_eps=1e-6,
    )
    return _varied(LlamaForCausalLM(config).eval())


class RmsNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.scale


class RotaryAttention(nn.Module):
    def __init__(self, config: LlamaConfig, fault: str) -> None:
        super().__init__()
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.size = config.hidden_size // self.heads
        self.qkv = nn.Linear(config.hidden_size, (self.heads + 2 * self.groups) * self.size, bias=False)
        self.out = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.base = 5000.0 if fault == "rope base" else 10000.0
        self.fault = fault

    def _turned(self, x: Tensor) -> Tensor:
        half = self.size // 2
        speeds = self.base ** (-torch.arange(half).float() / half)
        angles = torch.arange(x.shape[-2]).float()[:, None] * speeds
        if self.fault == "rope pairs":
            cos, sin = (each.repeat_interleave(2, -1) for each in (angles.cos(), angles.sin()))
            return x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * sin
        cos, sin = (torch.cat((each, each), -1) for each in (angles.cos(), angles.sin()))
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        sizes = [self.heads * self.size, self.groups * self.size, self.groups * self.size]
        q, k, v = (
            each.view(batch, length, -1, self.size).transpose(1, 2)
            for each in self.qkv(x).split(sizes, dim=-1)
        )
        times = self.heads // self.groups
        q, k = self._turned(q), self._turned(k)
        if self.fault == "groups":
            k, v = (each.repeat(1, times, 1, 1) for each in (k, v))
        else:
            k, v = (each.repeat_interleave(times, dim=1) for each in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Gated(nn.Module):
    def __init__(self, config: LlamaConfig, fault: str) -> None:
        super().__init__()
        self.both = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.both(x).chunk(2, dim=-1)
        if self.fault == "gate swapped":
            gate, up = up, gate
        return self.down((F.gelu(gate) if self.fault == "gate act" else F.silu(gate)) * up)


class RotaryLayer(nn.Module):
    def __init__(self, config: LlamaConfig, fault: str) -> None:
        super().__init__()
        eps = 1e-5 if fault == "rms eps" else config.rms_norm_eps
        self.n1 = RmsNorm(config.hidden_size, eps)
        self.n2 = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.att = RotaryAttention(config, fault)
        self.mlp = Gated(config, fault)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.att(self.n1(x))
        return x + self.mlp(self.n2(x))


class MyLlama(nn.Module):
    def __init__(self, config: LlamaConfig, fault: str, at: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(config.vocab_size, config.hidden_size)
        layers = (RotaryLayer(config, fault if i == at else "") for i in range(config.num_hidden_layers))
        self.stack = nn.Sequential(*layers)
        self.last = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.last(self.stack(self.emb(tokens))))


def mine_from_llama(hf: LlamaForCausalLM, fault: str = "", at: int = 1) -> nn.Module:
    mine = MyLlama(hf.config, fault, at).eval()
    with torch.no_grad():
        mine.emb.weight.copy_(hf.model.embed_tokens.weight)
        mine.last.scale.copy_(hf.model.norm.weight)
        mine.head.weight.copy_(hf.lm_head.weight)
        for a, b in zip(mine.stack, hf.model.layers, strict=True):
            a.n1.scale.copy_(b.input_layernorm.weight)
            a.n2.scale.copy_(b.post_attention_layernorm.weight)
            attention = b.self_attn
            parts = (attention.q_proj, attention.k_proj, attention.v_proj)
            a.att.qkv.weight.copy_(torch.cat([part.weight for part in parts]))
            a.att.out.weight.copy_(attention.o_proj.weight)
            a.mlp.both.weight.copy_(torch.cat((b.mlp.gate_proj.weight, b.mlp.up_proj.weight)))
            a.mlp.down.weight.copy_(b.mlp.down_proj.weight)
    return mine


# --- BERT: norms after, one module for each half of a block, nn.MultiheadAttention ---


def bert() -> BertModel:
    torch.manual_seed(2)
    config = BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    return _varied(BertModel(config, add_pooling_layer=True).eval())


class PostLayer(nn.Module):
    def __init__(self, config: BertConfig, fault: str) -> None:
        super().__init__()
        eps = 1e-5 if fault == "eps" else config.layer_norm_eps
        self.mha = nn.MultiheadAttention(config.hidden_size, config.num_attention_heads, batch_first=True)
        self.n1, self.n2 = (
            nn.LayerNorm(config.hidden_size, eps),
            nn.LayerNorm(config.hidden_size, config.layer_norm_eps),
        )
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        x = self.n1(x + self.mha(x, x, x, need_weights=False)[0])
        hidden = F.relu(self.up(x)) if self.fault == "relu" else F.gelu(self.up(x))
        return self.n2(self.down(hidden) if self.fault == "no residual" else x + self.down(hidden))


class MyBert(nn.Module):
    def __init__(self, config: BertConfig, fault: str, at: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.words = nn.Embedding(config.vocab_size, width)
        self.places = nn.Embedding(config.max_position_embeddings, width)
        self.kinds = nn.Embedding(config.type_vocab_size, width)
        self.n0 = nn.LayerNorm(width, config.layer_norm_eps)
        self.body = nn.ModuleList(
            PostLayer(config, fault if i == at else "") for i in range(config.num_hidden_layers)
        )
        self.pool = nn.Linear(width, width)
        self.fault = fault

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        kinds = torch.ones_like(ids) if self.fault == "token type" else torch.zeros_like(ids)
        x = self.words(ids) + self.places(torch.arange(ids.shape[1])) + self.kinds(kinds)
        x = self.n0(x)
        for layer in self.body:
            x = layer(x)
        first = x[:, -1] if self.fault == "last token" else x[:, 0]
        return x, torch.tanh(self.pool(first))


def mine_from_bert(hf: BertModel, fault: str = "", at: int = 1) -> nn.Module:
    mine = MyBert(hf.config, fault, at).eval()
    with torch.no_grad():
        e = hf.embeddings
        for a, b in (
            (mine.words, e.word_embeddings),
            (mine.places, e.position_embeddings),
            (mine.kinds, e.token_type_embeddings),
            (mine.n0, e.LayerNorm),
            (mine.pool, hf.pooler.dense),
        ):
            a.load_state_dict(b.state_dict())
        for a, b in zip(mine.body, hf.encoder.layer, strict=True):
            own = b.attention.self
            a.mha.in_proj_weight.copy_(torch.cat((own.query.weight, own.key.weight, own.value.weight)))
            a.mha.in_proj_bias.copy_(torch.cat((own.query.bias, own.key.bias, own.value.bias)))
            a.mha.out_proj.load_state_dict(b.attention.output.dense.state_dict())
            a.n1.load_state_dict(b.attention.output.LayerNorm.state_dict())
            a.n2.load_state_dict(b.output.LayerNorm.state_dict())
            a.up.load_state_dict(b.intermediate.dense.state_dict())
            a.down.load_state_dict(b.output.dense.state_dict())
    return mine
