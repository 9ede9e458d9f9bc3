"""Faults of the `transformers` Trainer loop."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Fault

_Fault = partial(Fault, program="trainer")

TRAIN = "trainer.train()"


FAULTS = [
    _Fault(
        name="trainer: labels shifted twice",
        edits=[
            (
                "    labels = ids.masked_fill(mask == 0, -100)\n",
                "    labels = ids.masked_fill(mask == 0, -100).roll(-1, 1)\n    labels[:, -1] = -100\n",
            )
        ],
        rules=("labels-shifted-twice",),
        lines=(TRAIN,),
        names=("@", "lm_head*", "transformer*"),
    ),
    _Fault(
        name="trainer: every label is ignored",
        edits=[("ids.masked_fill(mask == 0, -100)", "ids.masked_fill(mask >= 0, -100)")],
        rules=("labels-all-ignored",),
        lines=(TRAIN,),
        names=("@", "lm_head*"),
    ),
    _Fault(
        name="trainer: padding attended to",
        edits=[
            ("ids[number, : len(row)] = row", "ids[number, LENGTH - len(row) :] = row"),
            ("mask[number, : len(row)] = 1", "mask[number, LENGTH - len(row) :] = 1"),
            ('"attention_mask": mask, ', ""),
        ],
        rules=("padding-attended",),
        lines=(TRAIN,),
        names=("@", "transformer*"),
    ),
    _Fault(
        name="trainer: attention mask inverted",
        edits=[
            ("ids[number, : len(row)] = row", "ids[number, LENGTH - len(row) :] = row"),
            ("mask[number, : len(row)] = 1", "mask[number, LENGTH - len(row) :] = 1"),
            ('"attention_mask": mask, ', '"attention_mask": 1 - mask, '),
        ],
        rules=("mask-inverted", "padding-attended"),
        lines=(TRAIN,),
        names=("@", "transformer*"),
    ),
    _Fault(
        name="trainer: learning rate far too large",
        edits=[("learning_rate=4e-3", "learning_rate=3.0")],
        rules=("update-too-large",),
        lines=(TRAIN,),
        names=("*",),
    ),
    _Fault(
        name="trainer: learning rate in wrong units",
        edits=[("learning_rate=4e-3", "learning_rate=4e-10")],
        rules=("update-too-small",),
        lines=(TRAIN,),
        names=("*",),
    ),
    _Fault(
        name="trainer: body frozen, with random weights",
        edits=[
            (
                "    keep = Keep()\n",
                "    for parameter in model.transformer.parameters():\n"
                "        parameter.requires_grad = False\n"
                "    model.transformer.ln_f.requires_grad_(True)\n"
                "    keep = Keep()\n",
            )
        ],
        rules=("frozen-parameters",),
        names=("transformer*", "lm_head*"),
    ),
    _Fault(
        name="trainer: softmax of the logits before the loss",
        edits=[
            (
                "class Keep(",
                "class OwnLoss(Trainer):\n"
                "    def compute_loss(self, model, inputs, return_outputs=False, **others):\n"
                '        labels = inputs.pop("labels")\n'
                "        outputs = model(**inputs)\n"
                "        scores = outputs.logits.softmax(-1)[:, :-1].flatten(0, 1)\n"
                "        loss = torch.nn.functional.cross_entropy(scores, labels[:, 1:].flatten())\n"
                "        return (loss, outputs) if return_outputs else loss\n"
                "\n"
                "\n"
                "class Keep(",
            ),
            ("        trainer = Trainer(\n", "        trainer = OwnLoss(\n"),
        ],
        rules=("loss-input-is-probability",),
        lines=(
            "loss = torch.nn.functional.cross_entropy(scores, labels[:, 1:].flatten())",
            "scores = outputs.logits.softmax(-1)[:, :-1].flatten(0, 1)",
            TRAIN,
        ),
    ),
    _Fault(
        name="trainer: weights in bfloat16 with a small rate",
        edits=[
            ("return GPT2LMHeadModel(config)", "return GPT2LMHeadModel(config).to(torch.bfloat16)"),
            ("learning_rate=4e-3", "learning_rate=2e-5"),
        ],
        rules=("update-lost-to-rounding",),
        lines=(TRAIN,),
        names=("*",),
    ),
    _Fault(
        name="trainer: the last layer starts far too large",
        edits=[
            (
                "    return GPT2LMHeadModel(config)\n",
                "    model = GPT2LMHeadModel(config)\n"
                "    torch.nn.init.normal_(model.transformer.wte.weight, std=3.0)\n"
                "    return model\n",
            )
        ],
        rules=("bad-initial-loss", "init-scale"),
        lines=(TRAIN,),
        names=("transformer.wte*", "lm_head*"),
    ),
    _Fault(
        name="trainer: evaluated on the training rows",
        edits=[("eval_dataset=Counting(64, seed + 77)", "eval_dataset=Counting(640, seed)")],
        rules=("evaluated-on-training-data",),
        lines=(TRAIN,),
        names=("@",),
    ),
    _Fault(
        name="trainer: the same row again and again",
        edits=[('return {"input_ids": self.rows[index]}', 'return {"input_ids": self.rows[index % 16]}')],
        rules=("repeated-samples", "overfitting"),
        lines=(TRAIN,),
        names=("@",),
    ),
]
