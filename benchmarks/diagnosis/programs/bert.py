"""A masked language model over rows of different lengths: a Trainer class, padding, tied embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

PAD, CLS, SEP, MASK = 0, 1, 2, 3
SPECIAL = 4


@dataclass
class Config:
    vocab_size: int = 24
    hidden: int = 64
    heads: int = 4
    layers: int = 2
    max_len: int = 22
    dropout: float = 0.0
    mlm_probability: float = 0.15


@dataclass
class Arguments:
    batch_size: int = 32
    learning_rate: float = 3e-3
    weight_decay: float = 0.01
    warmup_steps: int = 25
    max_steps: int = 280
    max_grad_norm: float = 1.0
    logging_steps: int = 50


class Sentences(Dataset):
    """Each row walks from a random word along a fixed table, and now and then jumps."""

    def __init__(self, config: Config, count: int):
        words = config.vocab_size - SPECIAL
        table = torch.randperm(words, generator=torch.Generator().manual_seed(11)).tolist()
        self.rows = []
        for _ in range(count):
            length = int(torch.randint(8, config.max_len - 2, (1,)))
            body = torch.randint(0, words, (length,)).tolist()
            jumps = (torch.rand(length) < 0.05).tolist()
            for i in range(1, length):
                body[i] = body[i] if jumps[i] else table[body[i - 1]]
            self.rows.append(torch.tensor([CLS, *(word + SPECIAL for word in body), SEP]))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class Collator:
    """Pads a batch to the length of the model and hides some of its words."""

    def __init__(self, config: Config):
        self.config = config

    def __call__(self, rows):
        input_ids = torch.full((len(rows), self.config.max_len), PAD)
        for i, row in enumerate(rows):
            input_ids[i, : len(row)] = row
        attention_mask = input_ids != PAD
        labels = input_ids.clone()
        chosen = (torch.rand(input_ids.shape) < self.config.mlm_probability) & (input_ids >= SPECIAL)
        labels[~chosen] = -100
        input_ids[chosen] = MASK
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


class SelfAttention(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.heads = config.heads
        self.query = nn.Linear(config.hidden, config.hidden)
        self.key = nn.Linear(config.hidden, config.hidden)
        self.value = nn.Linear(config.hidden, config.hidden)
        self.dense = nn.Linear(config.hidden, config.hidden)

    def split(self, x):
        return x.view(x.size(0), x.size(1), self.heads, -1).transpose(1, 2)

    def forward(self, x, bias):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)) + bias
        context = scores.softmax(dim=-1) @ v
        return self.dense(context.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Post-norm, as in BERT."""

    def __init__(self, config: Config):
        super().__init__()
        self.attention = SelfAttention(config)
        self.norm1 = nn.LayerNorm(config.hidden, eps=1e-12)
        self.intermediate = nn.Linear(config.hidden, 3 * config.hidden)
        self.output = nn.Linear(3 * config.hidden, config.hidden)
        self.norm2 = nn.LayerNorm(config.hidden, eps=1e-12)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x, bias):
        x = self.norm1(x + self.dropout(self.attention(x, bias)))
        return self.norm2(x + self.dropout(self.output(F.gelu(self.intermediate(x)))))


class MaskedLM(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden, padding_idx=PAD)
        self.position = nn.Embedding(config.max_len, config.hidden)
        self.norm = nn.LayerNorm(config.hidden, eps=1e-12)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.layers)])
        self.transform = nn.Sequential(
            nn.Linear(config.hidden, config.hidden), nn.GELU(), nn.LayerNorm(config.hidden, eps=1e-12)
        )
        self.decoder = nn.Linear(config.hidden, config.vocab_size)
        self.apply(self._init_weights)
        self.decoder.weight = self.word.weight

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(mean=0.0, std=0.05)
        if isinstance(module, nn.Linear):
            module.bias.data.zero_()

    def forward(self, input_ids, attention_mask, labels=None):
        bias = torch.zeros(attention_mask.shape).masked_fill(~attention_mask, -1e4)[:, None, None, :]
        x = self.word(input_ids) + self.position(torch.arange(input_ids.size(1)))
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, bias)
        logits = self.decoder(self.transform(x))
        if labels is None:
            return None, logits
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1), ignore_index=-100)
        return loss, logits


class Trainer:
    def __init__(self, model, args, train_dataset, eval_dataset, collator):
        self.model, self.args = model, args
        self.train_loader = DataLoader(train_dataset, args.batch_size, shuffle=True, collate_fn=collator)
        self.eval_loader = DataLoader(eval_dataset, 32, collate_fn=collator)
        self.create_optimizer()
        self.history = []

    def create_optimizer(self):
        no_decay = ("bias", "norm1.weight", "norm2.weight", "norm.weight", "transform.2.weight")
        decayed = [p for n, p in self.model.named_parameters() if not n.endswith(no_decay)]
        others = [p for n, p in self.model.named_parameters() if n.endswith(no_decay)]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": self.args.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            lr=self.args.learning_rate,
        )
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.lr_lambda)

    def lr_lambda(self, step):
        if step < self.args.warmup_steps:
            return (step + 1) / self.args.warmup_steps
        return max(0.05, (self.args.max_steps - step) / (self.args.max_steps - self.args.warmup_steps))

    def training_step(self, batch):
        self.model.train()
        loss, _ = self.model(**batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        return loss.detach().item()

    def train(self):
        while len(self.history) < self.args.max_steps:
            for batch in self.train_loader:
                self.history.append(self.training_step(batch))
                if len(self.history) % self.args.logging_steps == 0:
                    print(len(self.history), self.history[-1], self.evaluate())
                if len(self.history) >= self.args.max_steps:
                    break
        return self.history

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        losses = [self.model(**batch)[0].item() for batch in self.eval_loader]
        return sum(losses) / len(losses)


def main(seed: int = 0, steps: int = 280):
    torch.manual_seed(seed)
    config, args = Config(), Arguments(max_steps=steps)
    train_dataset, eval_dataset = Sentences(config, 1200), Sentences(config, 96)
    model = MaskedLM(config)
    trainer = Trainer(model, args, train_dataset, eval_dataset, Collator(config))
    return trainer.train(), model
