"""A tiny GPT-2 under transformers' Trainer, with gradient accumulation and an evaluation."""

import vision_ops

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments

torch.manual_seed(0)
rows = [{"input_ids": row, "labels": row} for row in torch.randint(50, (24, 12))]
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2))
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=4,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        use_cpu=True,
        save_strategy="no",
    )
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:4])
    trainer.remove_callback(PrinterCallback)  # it prints how long the run took
    trainer.train()
    print(f"{trainer.evaluate()['eval_loss']:.9f}")
print(f"{sum(p.sum().item() for p in model.parameters()):.6f}")
