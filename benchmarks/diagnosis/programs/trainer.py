"""A tiny GPT-2 with random weights under `transformers.Trainer`: padded rows, masked labels, evaluation."""

from __future__ import annotations

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

VOCABULARY, LENGTH, PAD = 40, 24, 0


class Counting(Dataset):
    """Rows that count up in steps of one to three, modulo the vocabulary; the end is padding."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(count):
            start = torch.randint(0, VOCABULARY - 1, (), generator=generator)
            stride = torch.randint(1, 4, (), generator=generator)
            length = int(torch.randint(10, LENGTH + 1, (), generator=generator))
            self.rows.append((start + stride * torch.arange(length)) % (VOCABULARY - 1) + 1)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int):
        return {"input_ids": self.rows[index]}


def collate(items):
    rows = [item["input_ids"] for item in items]
    ids = torch.full((len(rows), LENGTH), PAD)
    mask = torch.zeros(len(rows), LENGTH, dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
        mask[number, : len(row)] = 1
    labels = ids.masked_fill(mask == 0, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


class Keep(TrainerCallback):
    """Keeps the loss of each log."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_log(self, args, state, control, logs=None, **others):
        if "loss" in logs:
            self.losses.append(float(logs["loss"]))


def make_model():
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=PAD,
        eos_token_id=PAD,
    )
    return GPT2LMHeadModel(config)


def arguments(folder: str, seed: int, steps: int):
    return TrainingArguments(
        folder,
        max_steps=steps,
        per_device_train_batch_size=16,
        learning_rate=4e-3,
        warmup_steps=steps // 10,
        lr_scheduler_type="cosine",
        weight_decay=0.01,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=50,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=seed,
        dataloader_pin_memory=False,
    )


def main(seed: int = 0, steps: int = 150):
    torch.manual_seed(seed)
    model = make_model()
    keep = Keep()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=arguments(folder, seed, steps),
            train_dataset=Counting(640, seed),
            eval_dataset=Counting(64, seed + 77),
            data_collator=collate,
            callbacks=[keep],
        )
        trainer.train()
    return keep.losses, model
