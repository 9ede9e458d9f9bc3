"""Faults of the masked language model."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Fault

_Fault = partial(Fault, program="bert")

FORWARD = "loss, _ = self.model(**batch)"
LOSS = "loss = F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1), ignore_index=-100)"
BACKWARD = "loss.backward()"
STEP = "self.optimizer.step()"
BIAS = "bias = torch.zeros(attention_mask.shape).masked_fill(~attention_mask, -1e4)[:, None, None, :]"
SCORES = "scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)) + bias"
CONTEXT = "context = scores.softmax(dim=-1) @ v"
LAYER = "x = layer(x, bias)"
TRAINING = "self.history.append(self.training_step(batch))"
EVALUATION = "losses = [self.model(**batch)[0].item() for batch in self.eval_loader]"
INPUT = "x = self.word(input_ids) + self.position(torch.arange(input_ids.size(1)))"
WHOLE = ("@", "maskedlm", "layers*")

FAULTS = [
    _Fault(
        name="bert: the padding mask is the wrong way round",
        edits=[("masked_fill(~attention_mask, -1e4)", "masked_fill(attention_mask, -1e4)")],
        rules=("mask-inverted",),
        lines=(BIAS.replace("~", ""), SCORES, CONTEXT, LAYER, FORWARD),
        names=WHOLE,
    ),
    _Fault(
        name="bert: the padding mask is forgotten",
        edits=[(".masked_fill(~attention_mask, -1e4)", "")],
        rules=("padding-attended",),
        lines=(BIAS.replace(".masked_fill(~attention_mask, -1e4)", ""), SCORES, CONTEXT, LAYER, FORWARD),
        names=WHOLE,
    ),
    _Fault(
        name="bert: attention sums to one over the queries",
        edits=[("scores.softmax(dim=-1)", "scores.softmax(dim=-2)")],
        rules=("padding-attended", "softmax-over-batch"),
        lines=(CONTEXT.replace("-1", "-2"), LAYER, FORWARD),
        names=WHOLE,
    ),
    _Fault(
        name="bert: the positions are not added",
        edits=[(" + self.position(torch.arange(input_ids.size(1)))", "")],
        rules=("order-ignored", "no-gradient-path"),
        lines=("x = self.word(input_ids)", FORWARD),
        names=("position*", "@", "maskedlm"),
    ),
    _Fault(
        name="bert: the chosen words are not hidden",
        edits=[("        input_ids[chosen] = MASK\n", "")],
        rules=("labels-not-shifted", "causality-leak"),  # the nearest names: the answer is in the input
        lines=(FORWARD, LOSS, BACKWARD, "labels = input_ids.clone()", "labels[~chosen] = -100"),
        names=WHOLE,
    ),
    _Fault(
        name="bert: all labels are ignored, for nothing is hidden yet when they are set",
        edits=[("labels[~chosen] = -100", "labels[input_ids != MASK] = -100")],
        rules=("labels-all-ignored",),
        lines=(LOSS, FORWARD, BACKWARD, TRAINING, "labels[input_ids != MASK] = -100"),
    ),
    _Fault(
        name="bert: the decoder gets a copy of the embedding",
        edits=[
            (
                "self.decoder.weight = self.word.weight",
                "self.decoder.weight = nn.Parameter(self.word.weight.detach().clone())",
            )
        ],
        rules=("tied-weights-apart",),
        lines=("self.decoder.weight = nn.Parameter(self.word.weight.detach().clone())",),
        names=("decoder*", "word*"),
    ),
    _Fault(
        name="bert: the norms are called otherwise in the list of those without decay",
        edits=[
            (
                '("bias", "norm1.weight", "norm2.weight", "norm.weight", "transform.2.weight")',
                '("bias", "LayerNorm.weight")',
            ),
            ("weight_decay: float = 0.01", "weight_decay: float = 0.5"),
        ],
        rules=("weight-decay-on-norms",),
        lines=(STEP, 'no_decay = ("bias", "LayerNorm.weight")', "self.optimizer = torch.optim.AdamW("),
        names=("*norm*", "transform.2*"),
    ),
    _Fault(
        name="bert: gradients are never zeroed",
        edits=[("        self.optimizer.zero_grad()\n", "")],
        rules=("stale-gradients",),
        lines=(BACKWARD, STEP),
        names=("*",),
    ),
    _Fault(
        name="bert: the warm-up counts epochs and begins at zero",
        edits=[
            ("        self.scheduler.step()\n", ""),
            (
                "                if len(self.history) >= self.args.max_steps:\n                    break\n",
                "                if len(self.history) >= self.args.max_steps:\n                    break\n"
                "            self.scheduler.step()\n",
            ),
            ("return (step + 1) / self.args.warmup_steps", "return step / self.args.warmup_steps"),
        ],
        rules=("learning-rate-zero",),
        lines=(STEP, "self.scheduler.step()", "return step / self.args.warmup_steps"),
        names=("*",),
    ),
    _Fault(
        name="bert: the layers are in a plain list",
        edits=[
            (
                "nn.ModuleList([Layer(config) for _ in range(config.layers)])",
                "[Layer(config) for _ in range(config.layers)]",
            )
        ],
        rules=("never-updated", "optimizer-of-other-parameters"),
        lines=(
            "self.layers = [Layer(config) for _ in range(config.layers)]",
            STEP,
            LAYER,
            "self.optimizer = torch.optim.AdamW(",
        ),
        names=("layer*", "*attention*", "*norm1*", "*norm2*", "*intermediate*", "*output*", "*Layer*"),
    ),
    _Fault(
        name="bert: the loss is made anew from its number",
        edits=[
            (
                "        loss.backward()\n",
                "        loss = torch.tensor(loss.item(), requires_grad=True)\n        loss.backward()\n",
            )
        ],
        rules=("no-gradient-path",),
        lines=("loss = torch.tensor(loss.item(), requires_grad=True)", BACKWARD, STEP, FORWARD),
        names=("*",),
    ),
    _Fault(
        name="bert: tied embeddings begin with a spread of one",
        edits=[("normal_(mean=0.0, std=0.05)", "normal_(mean=0.0, std=1.0)")],
        rules=("bad-initial-loss", "init-scale"),
        lines=(LOSS, FORWARD, "logits = self.decoder(self.transform(x))"),
        names=("*",),
    ),
    _Fault(
        name="bert: four units and one head",
        edits=[("hidden: int = 64", "hidden: int = 4"), ("heads: int = 4", "heads: int = 1")],
        rules=("underfitting", "plateau", "not-learning"),
        lines=(LOSS, FORWARD, BACKWARD, EVALUATION),
        names=("*",),
    ),
    _Fault(
        name="bert: evaluated on rows of the training",
        edits=[("train_dataset, eval_dataset, Collator", "train_dataset, train_dataset.rows[:96], Collator")],
        rules=("evaluated-on-training-data",),
        lines=(
            EVALUATION,
            "print(len(self.history), self.history[-1], self.evaluate())",
            "trainer = Trainer(model, args, train_dataset, train_dataset.rows[:96], Collator(config))",
            "self.eval_loader = DataLoader(eval_dataset, 32, collate_fn=collator)",
        ),
        names=("@", "maskedlm"),
    ),
]
