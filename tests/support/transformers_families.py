"""Small models of transformers with random weights, one for each family."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["DECODERS", "ENCODERS", "ENCODER_DECODERS", "build", "inputs"]

_SIZES = {
    "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "embedding_size": 32, "emb_dim": 32,
    "num_hidden_layers": 2, "n_layer": 2, "num_layers": 2, "n_layers": 2, "encoder_layers": 2,
    "decoder_layers": 2, "num_decoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "num_key_value_heads": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "intermediate_size": 64, "n_inner": 64, "d_ff": 64, "hidden_dim": 64, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "ffn_dim": 64, "d_kv": 8, "head_dim": 8, "rotary_dim": 4, "word_embed_proj_dim": 32,
    "vocab_size": 99, "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0,
    "num_local_experts": 2, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32,
    "attention_types": [[["global", "local"], 1]], "attn_layers": ["local", "lsh"],
}  # fmt: skip

DECODERS = tuple(
    """
GPT2 GPTNeo GPTNeoX GPTJ OPT Bloom Llama Mistral Mixtral Qwen2 Gemma Phi StableLm Falcon CodeGen Starcoder2
Olmo Cohere Persimmon BioGpt
""".split()  # noqa: SIM905
)
ENCODERS = tuple(
    """
Bert Roberta Electra DistilBert Albert MPNet Camembert ConvBert DebertaV2 Ernie FNet LayoutLM RoFormer
XLMRoberta MegatronBert SqueezeBert
""".split()  # noqa: SIM905
)
ENCODER_DECODERS = ("T5", "Bart", "MBart", "Pegasus", "Blenderbot", "Marian")


def build(family: str) -> Any:
    """The model with small sizes: only those that its configuration has."""
    import transformers

    kind = getattr(transformers, f"{family}Config")
    default = kind()
    known = {name: size for name, size in _SIZES.items() if name in default.to_dict()}
    if family == "GPTNeo":
        known.pop("num_hidden_layers", None)
    torch.manual_seed(0)
    return getattr(transformers, f"{family}Model")(kind(**known))


def inputs(family: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    given = {"input_ids": torch.randint(3, 99, (2, 7))}
    if family in ENCODER_DECODERS:
        given["decoder_input_ids"] = torch.randint(3, 99, (2, 5))
    return given
