"""Trainings by libraries."""

from __future__ import annotations

import tempfile

import torch
from torch.utils.data import Dataset

from benchmarks.diagnosis.healthy.data import sentences
from benchmarks.diagnosis.healthy.registered import healthy


class _Rows(Dataset):
    def __init__(self, x, y) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int):
        return {"input_ids": self.x[index], "labels": self.y[index]}


def _train(model, seed: int, steps: int, **options):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    losses: list[float] = []

    class Keep(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **others):
            if "loss" in logs:
                losses.append(float(logs["loss"]))

    x, y = sentences()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=16, logging_steps=1, save_strategy="no",
            report_to=[], disable_tqdm=True, use_cpu=True, seed=seed, dataloader_pin_memory=False, **options,
        )  # fmt: skip
        Trainer(model=model, args=arguments, train_dataset=_Rows(x, y), callbacks=[Keep()]).train()
    return losses, model


def _bert():
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    return BertForSequenceClassification(
        BertConfig(vocab_size=32, num_labels=4, max_position_embeddings=16, **sizes)
    )


@healthy("transformers Trainer: BERT that classifies, accumulation, bf16, warm-up", falls_to=0.85)
def bert(seed=0, steps=120):
    torch.manual_seed(seed)
    options = {"learning_rate": 3e-3, "warmup_steps": 12, "gradient_accumulation_steps": 2, "bf16": True}
    return _train(_bert(), seed, steps, **options)


@healthy("transformers Trainer: frozen encoder, Adafactor, constant rate", falls_to=0.97)
def frozen_bert(seed=0, steps=150):
    torch.manual_seed(seed)
    model = _bert()
    model.bert.embeddings.requires_grad_(False)
    options = {
        "learning_rate": 5e-3,
        "lr_scheduler_type": "constant",
        "optim": "adafactor",
        "max_grad_norm": 0.0,
    }
    return _train(model, seed, steps, **options)
