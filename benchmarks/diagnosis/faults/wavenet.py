"""Faults of the WaveNet."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Fault

_Fault = partial(Fault, program="wavenet")

FORWARD = "logits = model(inputs)"
CRITERION = "loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)"
BACKWARD = "scaler.scale(loss).backward()"
STEP = "scaler.step(optimizer)"
CLIP = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
UNSCALE = "            scaler.unscale_(optimizer)\n"
LOOP = "for inputs, targets in train_loader:"
PADDED = "value, gate = self.conv(F.pad(x, (self.reach, 0))).chunk(2, dim=1)"
LAYERS = "[Gated(width, dilation) for dilation in DILATIONS]"
TIE = "self.head.weight = self.embed.weight"

FAULTS = [
    _Fault(
        name="wavenet: padded on both sides",
        edits=[("(self.reach, 0)", "(self.reach // 2, self.reach - self.reach // 2)")],
        rules=("causality-leak",),
        lines=(
            FORWARD,
            CRITERION,
            PADDED.replace("(self.reach, 0)", "(self.reach // 2, self.reach - self.reach // 2)"),
            "x, skip = layer(x)",
        ),
        names=("layers*", "*conv", "@"),
    ),
    _Fault(
        name="wavenet: the target is the input itself",
        edits=[("code[:-1], code[1:].clone()", "code[:-1], code[:-1].clone()")],
        rules=("labels-not-shifted",),
        lines=(CRITERION, BACKWARD, FORWARD, LOOP, "inputs, targets = code[:-1], code[:-1].clone()"),
        names=("@",),
    ),
    _Fault(
        name="wavenet: shifted by the dataset and again in the loss",
        edits=[
            (
                CRITERION,
                "logits, targets = logits[:, :-1], targets[:, 1:]\n                " + CRITERION,
            )
        ],
        rules=("labels-shifted-twice",),
        lines=(CRITERION, BACKWARD, FORWARD, LOOP, "logits, targets = logits[:, :-1], targets[:, 1:]"),
        names=("@",),
    ),
    _Fault(
        name="wavenet: clipped while the gradients are scaled",
        edits=[(UNSCALE, "")],
        rules=("clipped-before-unscale",),
        lines=(CLIP, STEP, BACKWARD),
        names=("*",),
    ),
    _Fault(
        name="wavenet: float16 without a scaler",
        edits=[
            ("            scaler.scale(loss).backward()\n" + UNSCALE, "            loss.backward()\n"),
            (
                "            scaler.step(optimizer)\n            scaler.update()\n",
                "            optimizer.step()\n",
            ),
            ('    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)\n', ""),
        ],
        rules=("half-precision-without-scaler",),
        lines=("loss.backward()", "optimizer.step()", CRITERION, FORWARD),
        names=("*",),
    ),
    _Fault(
        name="wavenet: more samples ignored than a row has",
        edits=[("FIELD = 8 ", "FIELD = 2 ** len(DILATIONS) * 2 ")],
        rules=("labels-all-ignored", "non-finite"),
        lines=(CRITERION, BACKWARD),
    ),
    _Fault(
        name="wavenet: layers in a plain list",
        edits=[(f"nn.ModuleList({LAYERS})", LAYERS)],
        rules=("never-updated",),
        lines=("x, skip = layer(x)", STEP, BACKWARD, f"self.layers = {LAYERS}"),
        names=("layers*", "*conv*", "*mix*"),
    ),
    _Fault(
        name="wavenet: the head is a copy of the embedding",
        edits=[(TIE, "self.head.weight.data.copy_(self.embed.weight.data)")],
        rules=("tied-weights-apart",),
        lines=(STEP, "self.head.weight.data.copy_(self.embed.weight.data)"),
        names=("head*", "embed*"),
    ),
    _Fault(
        name="wavenet: fifteen gated layers without residuals",
        edits=[
            ("return x + residual, skip", "return residual, skip"),
            ("total = total + skip", "total = skip"),
            ("DILATIONS = (1, 2, 4, 8, 16)", "DILATIONS = (1, 2, 4, 8, 16) * 3"),
        ],
        rules=("vanishing-gradients",),
        lines=(BACKWARD,),
        names=("layers*", "embed*"),
    ),
    _Fault(
        name="wavenet: tied embedding starts with a deviation of one",
        edits=[("        nn.init.normal_(self.embed.weight, std=0.1)\n", "")],
        rules=("bad-initial-loss", "init-scale"),
        lines=(CRITERION, BACKWARD),
        names=("head*", "embed*"),
    ),
    _Fault(
        name="wavenet: logits with time first, targets with rows first",
        edits=[
            (CRITERION, CRITERION.replace("logits.flatten(0, 1)", "logits.transpose(0, 1).flatten(0, 1)"))
        ],
        rules=("labels-do-not-fit", "not-learning"),
        lines=(
            CRITERION.replace("logits.flatten(0, 1)", "logits.transpose(0, 1).flatten(0, 1)"),
            BACKWARD,
            FORWARD,
        ),
        names=("*",),
    ),
    _Fault(
        name="wavenet: the decay of an epoch at each step",
        edits=[
            (
                "        evaluate(average, val_loader)\n        scheduler.step()\n",
                "        evaluate(average, val_loader)\n",
            ),
            ("            scaler.update()\n", "            scaler.update()\n            scheduler.step()\n"),
        ],
        rules=("update-too-small", "learning-rate-zero", "plateau", "underfitting"),
        lines=(STEP, "scheduler.step()", CRITERION, BACKWARD),
        names=("*",),
    ),
    _Fault(
        name="wavenet: gates and tanh start saturated",
        edits=[
            (
                "        self.tanh, self.sigmoid = nn.Tanh(), nn.Sigmoid()\n",
                "        self.tanh, self.sigmoid = nn.Tanh(), nn.Sigmoid()\n"
                "        nn.init.normal_(self.conv.weight, std=4.0)\n",
            )
        ],
        rules=("saturated-units", "init-scale"),
        lines=("nn.init.normal_(self.conv.weight, std=4.0)",),
        names=("layers*", "*conv*", "*tanh", "*sigmoid"),
    ),
    _Fault(
        name="wavenet: samples made whole numbers before they are coded",
        edits=[
            (
                "torch.randn(count, length + 1)).clamp(-1, 1))",
                "torch.randn(count, length + 1)).clamp(-1, 1).long())",
            )
        ],
        rules=("constant-labels",),
        lines=(CRITERION, BACKWARD, LOOP, FORWARD),
    ),
]
