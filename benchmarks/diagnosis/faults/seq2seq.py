"""Faults of the transformer that rewrites dates."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Fault

_Fault = partial(Fault, program="seq2seq")

CALL = "logits = model(source, inputs)"
CRITERION = "return criterion(logits.flatten(0, 1), labels.flatten())"
COMPUTE = "loss = compute_loss(model, criterion, source, target)"
BACKWARD = "loss.backward()"
STEP = "optimizer.step()"
RATE = "scheduler.step()"
ENCODER = "memory = self.transformer.encoder(self.embed(source), src_key_padding_mask=source_padding)"
LOSS = (CRITERION, COMPUTE, BACKWARD)

FAULTS = [
    _Fault(
        name="seq2seq: the decoder has no causal mask",
        edits=[("            tgt_mask=causal,\n", "")],
        rules=("causality-leak",),
        lines=(CALL, "out = self.transformer.decoder(", *LOSS),
        names=("@", "transformer", "transformer.decoder*"),
    ),
    _Fault(
        name="seq2seq: the labels are the decoder's inputs",
        edits=[("inputs, labels = target[:, :-1], target[:, 1:]", "inputs, labels = target, target")],
        rules=("labels-not-shifted",),
        lines=(CALL, "inputs, labels = target, target", *LOSS),
        names=("@",),
    ),
    _Fault(
        name="seq2seq: the labels are shifted by two",
        edits=[
            (
                "inputs, labels = target[:, :-1], target[:, 1:]",
                "inputs, labels = target[:, :-2], target[:, 2:]",
            )
        ],
        rules=("labels-shifted-twice",),
        lines=(CALL, "inputs, labels = target[:, :-2], target[:, 2:]", *LOSS),
        names=("@",),
    ),
    _Fault(
        name="seq2seq: the padding mask is inverted",
        edits=[("source_padding = source == PAD", "source_padding = source != PAD")],
        rules=("mask-inverted",),
        lines=(CALL, ENCODER, "source_padding = source != PAD"),
        names=("@", "transformer", "transformer.encoder*", "transformer.decoder*"),
    ),
    _Fault(
        name="seq2seq: no padding mask",
        edits=[("source_padding = source == PAD", "source_padding = None")],
        rules=("padding-attended",),
        lines=(CALL, ENCODER, "source_padding = None"),
        names=("@", "transformer", "transformer.encoder*", "transformer.decoder*"),
    ),
    _Fault(
        name="seq2seq: positions are never added",
        edits=[("return self.dropout(self.positions(x))", "return self.dropout(x)")],
        rules=("order-ignored",),
        lines=(CALL, ENCODER, "return self.dropout(x)"),
        names=("@", "positions", "embedding", "transformer*"),
    ),
    _Fault(
        name="seq2seq: the schedule is never stepped",
        edits=[(f"            {RATE}\n", "")],
        rules=("scheduler-never-stepped",),
        lines=(
            STEP,
            "scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, WarmupInverseSqrt(40))",
        ),
        names=("*",),
    ),
    _Fault(
        name="seq2seq: warm-up by whole division",
        edits=[("step / self.warmup, math", "step // self.warmup, math")],
        rules=("learning-rate-zero", "warm-up-cliff"),
        lines=(STEP, RATE, "return min(step // self.warmup, math.sqrt(self.warmup / step))"),
        names=("*",),
    ),
    _Fault(
        name="seq2seq: the wrong side of a mask hides all labels",
        edits=[
            (
                f"    {CALL}\n",
                f"    labels = labels.masked_fill(labels != PAD, PAD)\n    {CALL}\n",
            )
        ],
        rules=("labels-all-ignored",),
        lines=("labels = labels.masked_fill(labels != PAD, PAD)", *LOSS),
        names=("@",),
    ),
    _Fault(
        name="seq2seq: the loss is a sum over all letters",
        edits=[("(ignore_index=PAD)", "(ignore_index=PAD, reduction='sum')")],
        rules=("loss-scales-with-batch",),
        lines=LOSS,
        names=("@",),
    ),
    _Fault(
        name="seq2seq: losses are added up with their graphs",
        edits=[
            ("    losses = []\n    best", "    losses, total = [], 0.0\n    best"),
            (
                "            losses.append(loss.item())\n",
                "            losses.append(loss.item())\n            total = total + loss\n",
            ),
        ],
        rules=("graph-leak",),
        lines=("total = total + loss", *LOSS),
        names=("@",),
    ),
    _Fault(
        name="seq2seq: the tied embedding keeps a spread of one",
        edits=[("        nn.init.normal_(self.embedding.weight, std=width**-0.5)\n", "")],
        rules=("bad-initial-loss", "init-scale"),
        lines=(*LOSS, "return self.generator(out)"),
        names=("generator*", "embedding*"),
    ),
    _Fault(
        name="seq2seq: the tied weight is a copy",
        edits=[
            (
                "self.generator.weight = self.embedding.weight",
                "self.generator.weight = nn.Parameter(self.embedding.weight.clone())",
            )
        ],
        rules=("tied-weights-apart",),
        lines=("self.generator.weight = nn.Parameter(self.embedding.weight.clone())",),
        names=("generator*", "embedding*"),
    ),
    _Fault(
        name="seq2seq: the decoder gets a detached memory",
        edits=[("            memory,\n", "            memory.detach(),\n")],
        rules=("no-gradient-path",),
        lines=("memory.detach(),", "out = self.transformer.decoder("),
        names=("transformer.encoder*",),
    ),
    _Fault(
        name="seq2seq: only the transformer is in the optimizer",
        edits=[("torch.optim.Adam(model.parameters(),", "torch.optim.Adam(model.transformer.parameters(),")],
        rules=("never-updated", "optimizer-of-other-parameters"),
        lines=(STEP,),
        names=("embedding*", "generator*"),
    ),
]
