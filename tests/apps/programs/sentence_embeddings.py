"""sentence-transformers: a tiny BERT with pooling, and its contrastive loss, without a tokenizer file."""

import vision_ops

import torch
from sentence_transformers import models
from transformers import BertConfig, BertModel

torch.manual_seed(0)
config = BertConfig(
    vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
)
bert, pooling = BertModel(config), models.Pooling(32, pooling_mode="mean")
optimizer = torch.optim.AdamW(bert.parameters(), 1e-3)
for _ in range(3):
    tokens, mask = torch.randint(60, (4, 8)), torch.ones(4, 8, dtype=torch.long)
    hidden = bert(input_ids=tokens, attention_mask=mask).last_hidden_state
    vectors = pooling({"token_embeddings": hidden, "attention_mask": mask})["sentence_embedding"]
    loss = (vectors @ vectors.T - 32 * torch.eye(4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{loss.item():.6f}")
