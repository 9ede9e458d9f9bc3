"""Faults of the autoencoder."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Fault

_Fault = partial(Fault, program="autoencoder")

CRITERION = "return F.binary_cross_entropy_with_logits(logits.float(), target)"
LOSS = "loss = reconstruction_loss(out, pictures) / ACCUMULATE"
BACKWARD = "scaler.scale(loss).backward()"
STEP = "scaler.step(optimizer)"
CALL = "out = model(pictures)"
CLIP = "            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
UNSCALE = f"            scaler.unscale_(optimizer)\n{CLIP}"

FAULTS = [
    _Fault(
        name="autoencoder: encoder detached",
        edits=[("code = self.encoder(x)", "code = self.encoder(x).detach()")],
        rules=("no-gradient-path",),
        lines=("code = self.encoder(x).detach()",),
        names=("encoder*",),
    ),
    _Fault(
        name="autoencoder: sigmoid before the loss with logits",
        edits=[("return self.decoder(code)", "return self.decoder(code).sigmoid()")],
        rules=("loss-input-is-probability",),
        lines=(CRITERION, LOSS, BACKWARD, "return self.decoder(code).sigmoid()"),
    ),
    _Fault(
        name="autoencoder: clipped before unscaled",
        edits=[(UNSCALE, CLIP)],
        rules=("clipped-before-unscale",),
        lines=("torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)", STEP),
        names=("*",),
    ),
    _Fault(
        name="autoencoder: float16 without a scaler",
        edits=[("init_scale=2.0**12)", "enabled=False)")],
        rules=("half-precision-without-scaler",),
        lines=(LOSS, BACKWARD, STEP, CALL),
        names=("*",),
    ),
    _Fault(
        name="autoencoder: the loss is not divided",
        edits=[
            ("reconstruction_loss(out, pictures) / ACCUMULATE", "reconstruction_loss(out, pictures)"),
            ("ACCUMULATE = 2", "ACCUMULATE = 4"),
        ],
        rules=("accumulation-undivided",),
        lines=("loss = reconstruction_loss(out, pictures)", CRITERION, BACKWARD, STEP),
        names=("*",),
    ),
    _Fault(
        name="autoencoder: logarithm of zero",
        edits=[
            (
                f"    {CRITERION}",
                "    p, target = torch.sigmoid(8 * logits.float()), (target > 0.5).float()\n"
                "    return -(target * torch.log(p) + (1 - target) * torch.log(1 - p)).mean()",
            ),
            ("lr=4e-3", "lr=2e-2"),
        ],
        rules=("non-finite",),
        lines=("return -(target * torch.log(p) + (1 - target) * torch.log(1 - p)).mean()", LOSS, BACKWARD),
    ),
    _Fault(
        name="autoencoder: targets from 0 to 255",
        edits=[
            (
                "loss = reconstruction_loss(out, pictures) / ACCUMULATE",
                "loss = reconstruction_loss(out, pictures * 255) / ACCUMULATE",
            )
        ],
        rules=("labels-do-not-fit", "loss-wrong-sign"),
        lines=("loss = reconstruction_loss(out, pictures * 255) / ACCUMULATE", CRITERION, BACKWARD),
    ),
    _Fault(
        name="autoencoder: the loss is a sum",
        edits=[
            (
                "binary_cross_entropy_with_logits(logits.float(), target)",
                'binary_cross_entropy_with_logits(logits.float(), target, reduction="sum")',
            ),
            ("torch.optim.Adam(model.parameters(), lr=4e-3)", "torch.optim.SGD(model.parameters(), lr=0.2)"),
            ("            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", ""),
        ],
        rules=("loss-scales-with-batch",),
        lines=(
            'return F.binary_cross_entropy_with_logits(logits.float(), target, reduction="sum")',
            LOSS,
            BACKWARD,
        ),
    ),
    _Fault(
        name="autoencoder: code of one number",
        edits=[("code: int = 12", "code: int = 1"), ("hidden: int = 48", "hidden: int = 4")],
        rules=("underfitting", "plateau"),
        lines=(CRITERION, LOSS, BACKWARD),
        names=("*",),
    ),
    _Fault(
        name="autoencoder: dead code",
        edits=[
            (
                "nn.Linear(hidden, code))\n",
                "nn.Linear(hidden, code), nn.ReLU())\n"
                "        nn.init.constant_(self.encoder[2].bias, -30.0)\n",
            )
        ],
        rules=("dead-units",),
        names=("encoder.2*", "encoder.3*"),
    ),
    _Fault(
        name="autoencoder: one target for all",
        edits=[
            (
                "loss = reconstruction_loss(out, pictures) / ACCUMULATE",
                "loss = reconstruction_loss(out, pictures * 0) / ACCUMULATE",
            )
        ],
        rules=("constant-labels",),
        lines=("loss = reconstruction_loss(out, pictures * 0) / ACCUMULATE", CRITERION, BACKWARD),
    ),
    _Fault(
        name="autoencoder: workers draw the same pictures",
        edits=[
            (
                "from torch.utils.data import DataLoader, Dataset\n",
                "from torch.utils.data import DataLoader, Dataset, IterableDataset\n",
            ),
            (
                "class Autoencoder(",
                "class Stream(IterableDataset):\n"
                "    def __init__(self, seed):\n"
                "        self.seed = seed\n"
                "\n"
                "    def __iter__(self):\n"
                "        yield from Rectangles(480, self.seed)\n"
                "\n"
                "\n"
                "class Autoencoder(",
            ),
            (
                "DataLoader(Rectangles(960, seed), batch_size=16, shuffle=True, drop_last=True)",
                "DataLoader(Stream(seed), batch_size=16, drop_last=True, num_workers=2)",
            ),
        ],
        rules=("repeated-samples",),
        lines=(CALL, LOSS, BACKWARD, "for pictures in loader:"),
        names=("@",),
    ),
    _Fault(
        name="autoencoder: learning rate far too large",
        edits=[("lr=4e-3", "lr=1.0")],
        rules=("update-too-large",),
        lines=(STEP,),
        names=("*",),
    ),
    _Fault(
        name="autoencoder: decoder made anew after the optimizer",
        edits=[
            ("    scaler = torch.amp", "    model.decoder = Autoencoder().decoder\n    scaler = torch.amp")
        ],
        rules=("never-updated", "optimizer-of-other-parameters"),
        names=("decoder*",),
    ),
]
