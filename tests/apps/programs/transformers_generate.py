"""A tiny Llama generates: a prefill, then token by token with a key-value cache."""

import vision_ops

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    pad_token_id=0,
)
model = LlamaForCausalLM(config).eval()
prompt = torch.randint(1, 64, (2, 5))
print(model.generate(prompt, max_new_tokens=6, do_sample=False).tolist())
print(model.generate(prompt, max_new_tokens=6, do_sample=True, top_k=10).tolist())
