"""Faults of the ConvNeXt-like classifier."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Fault

_Fault = partial(Fault, program="convnext")

CALL = "output = model(pictures)"
CRITERION = "loss = criterion(output, labels)"
BACKWARD = "loss.backward()"
STEP = "optimizer.step()"
RATE = "scheduler.step()"
FLOAT16 = (
    "        output = model(pictures)\n        loss = criterion(output, labels)\n",
    "        with torch.autocast('cpu', dtype=torch.float16):\n"
    "            output = model(pictures)\n"
    "            loss = criterion(output, labels)\n",
)
FLOAT16_STEPS = 120
"""Convolutions in float16 are several times slower on a CPU."""

FAULTS = [
    _Fault(
        name="convnext: bytes are neither scaled nor standardised",
        edits=[
            ("self.pictures[index].float() / 255", "self.pictures[index].float()"),
            ("        picture = (picture - MEAN) / STD\n", ""),
        ],
        rules=("input-scale",),
        lines=(CALL, "x = self.stem(pictures)"),
        names=("stem*", "@"),
    ),
    _Fault(
        name="convnext: the training loop standardises once more",
        edits=[
            (f"        {CALL}\n        loss", "        output = model((pictures - MEAN) / STD)\n        loss")
        ],
        rules=("normalised-twice", "input-scale"),
        lines=("output = model((pictures - MEAN) / STD)", "x = self.stem(pictures)"),
        names=("stem*", "@"),
    ),
    _Fault(
        name="convnext: a new head after the optimizer was made",
        edits=[
            (
                "    losses = []\n    while",
                "    model.head = nn.Linear(model.head.in_features, len(SHAPES))\n    losses = []\n    while",
            )
        ],
        rules=("optimizer-of-other-parameters", "never-updated"),
        lines=(STEP,),
        names=("head*",),
    ),
    _Fault(
        name="convnext: softmax in the model and cross-entropy",
        edits=[("return self.head(x)", "return self.head(x).softmax(dim=-1)")],
        rules=("loss-input-is-probability",),
        lines=(CRITERION, BACKWARD, "return self.head(x).softmax(dim=-1)"),
    ),
    _Fault(
        name="convnext: log-softmax over the samples",
        edits=[
            ("return self.head(x)", "return F.log_softmax(self.head(x), dim=0)"),
            ("nn.CrossEntropyLoss(label_smoothing=0.05)", "nn.NLLLoss()"),
        ],
        rules=("softmax-over-batch",),
        lines=(CRITERION, BACKWARD, "return F.log_softmax(self.head(x), dim=0)"),
    ),
    _Fault(
        name="convnext: warm-up divides by the square of its length",
        edits=[("return (step + 1) / warmup", "return (step + 1) / warmup**2")],
        rules=("warm-up-cliff",),
        lines=(STEP, RATE, "return (step + 1) / warmup**2"),
        names=("*",),
    ),
    _Fault(
        name="convnext: pictures are mixed up within the batch, labels are not",
        edits=[
            (
                f"        {CALL}\n        loss",
                f"        pictures = pictures[torch.randperm(len(pictures))]\n        {CALL}\n        loss",
            )
        ],
        rules=("labels-do-not-fit", "not-learning"),
        lines=(CRITERION, BACKWARD, "pictures = pictures[torch.randperm(len(pictures))]"),
        names=("*", "@"),
    ),
    _Fault(
        name="convnext: the rate is a hundred times too large",
        edits=[("lr=4e-3", "lr=0.4")],
        rules=("update-too-large",),
        lines=(STEP,),
        names=("*",),
    ),
    _Fault(
        name="convnext: scheduler steps before the optimizer",
        edits=[(f"        {STEP}\n        {RATE}\n", f"        {RATE}\n        {STEP}\n")],
        rules=("scheduler-before-optimizer",),
        lines=(RATE, STEP),
        names=("*",),
    ),
    _Fault(
        name="convnext: every linear layer starts with one constant",
        edits=[
            (
                "            nn.init.zeros_(module.bias)\n",
                "            nn.init.zeros_(module.bias)\n"
                "        if isinstance(module, nn.Linear):\n"
                "            nn.init.constant_(module.weight, 0.02)\n",
            )
        ],
        rules=("units-alike",),
        lines=("nn.init.constant_(module.weight, 0.02)",),
        names=("*expand*", "*shrink*", "head*"),
    ),
    _Fault(
        name="convnext: the stem runs under no_grad",
        edits=[
            (
                "        x = self.stem(pictures)\n",
                "        with torch.no_grad():\n            x = self.stem(pictures)\n",
            )
        ],
        rules=("no-gradient-path",),
        lines=("x = self.stem(pictures)", "with torch.no_grad():"),
        names=("stem*",),
    ),
    _Fault(
        name="convnext: weight decay on all parameters",
        edits=[
            (
                "torch.optim.AdamW(parameter_groups(model, weight_decay=0.05), lr=4e-3)",
                "torch.optim.AdamW(model.parameters(), weight_decay=0.3, lr=4e-3)",
            )
        ],
        rules=("weight-decay-on-norms",),
        lines=(STEP,),
        names=("*norm*", "*bias", "*scale", "stem.1*", "down.0*"),
    ),
    _Fault(
        name="convnext: float16 autocast without a scaler",
        edits=[FLOAT16],
        rules=("half-precision-without-scaler",),
        lines=(CALL, CRITERION, BACKWARD, STEP, "with torch.autocast('cpu', dtype=torch.float16):"),
        names=("*", "@"),
        steps=FLOAT16_STEPS,
    ),
    _Fault(
        name="convnext: clips the scaled gradients",
        edits=[
            FLOAT16,
            ("        loss.backward()\n", "        scaler.scale(loss).backward()\n"),
            ("        optimizer.step()\n", "        scaler.step(optimizer)\n        scaler.update()\n"),
            ("    model.train()\n", "    model.train()\n    scaler = torch.amp.GradScaler('cpu')\n"),
        ],
        rules=("clipped-before-unscale",),
        lines=(
            "nn.utils.clip_grad_norm_(model.parameters(), max_norm=5.0)",
            "scaler.step(optimizer)",
            "scaler.scale(loss).backward()",
        ),
        names=("*",),
        steps=FLOAT16_STEPS,
    ),
]
