"""Faults of the segmentation."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Fault

_Fault = partial(Fault, program="segmentation")

FORWARD = "logits = model(images)"
LOSS = "loss = compute_loss(logits, masks)"
ENTROPY = 'ce = F.cross_entropy(logits, masks, ignore_index=CFG["ignore"])'
BOTH = "return ce + 0.5 * dice_loss(logits, masks)"
BACKWARD = '(loss / CFG["accumulate"]).backward()'
STEP = "optimizer.step()"
LOOP = "for i, (images, masks) in enumerate(loader):"
TRAIN = "train_loss = train_one_epoch(model, train_loader, optimizer, scheduler, log, steps)"
TOTAL = "total += compute_loss(logits, masks).item()"
EVALUATE = "val_loss, miou = evaluate(model, val_loader)"

FAULTS = [
    _Fault(
        name="segmentation: the network ends in a softmax",
        edits=[("return self.head(x)", "return self.head(x).softmax(dim=1)")],
        rules=("loss-input-is-probability",),
        lines=(ENTROPY, LOSS, BACKWARD, "return self.head(x).softmax(dim=1)"),
    ),
    _Fault(
        name="segmentation: the softmax of the dice runs over the batch",
        edits=[("logits.softmax(dim=1) * valid", "logits.softmax(dim=0) * valid")],
        rules=("softmax-over-batch",),
        lines=("probs = logits.softmax(dim=0) * valid", BOTH, LOSS, BACKWARD),
    ),
    _Fault(
        name="segmentation: two micro-batches are added up, not divided",
        edits=[(BACKWARD, "loss.backward()")],
        rules=("accumulation-undivided",),
        lines=("loss.backward()", STEP, LOSS),
        names=("*",),
    ),
    _Fault(
        name="segmentation: the arms of a where are exchanged, so that every pixel is ignored",
        edits=[
            (
                "        return image, self.masks[i]\n",
                "        masks = self.masks[i]\n"
                '        return image, torch.where(masks < CFG["classes"], CFG["ignore"], masks)\n',
            ),
            (
                "return image.flip(-1), self.masks[i].flip(-1)",
                "return image.flip(-1), torch.full_like(self.masks[i], 255)",
            ),
        ],
        rules=("labels-all-ignored",),
        lines=(ENTROPY, LOSS, BACKWARD, LOOP),
    ),
    _Fault(
        name="segmentation: pictures of 0 to 255 are normalised as if they were 0 to 1",
        edits=[("self.images[i].float() / 255.0", "self.images[i].float()")],
        rules=("input-scale",),
        lines=(FORWARD, "skip1 = self.enc1(x)"),
        names=("enc1*", "@", "unet"),
    ),
    _Fault(
        name="segmentation: the training loop normalises again",
        edits=[
            (
                "            logits = model(images)\n        loss = compute_loss(logits, masks)\n",
                "            logits = model((images - 0.29) / 0.16)\n"
                "        loss = compute_loss(logits, masks)\n",
            )
        ],
        rules=("normalised-twice", "input-scale"),
        lines=("logits = model((images - 0.29) / 0.16)", "skip1 = self.enc1(x)"),
        names=("enc1*", "@", "unet"),
    ),
    _Fault(
        name="segmentation: evaluation mode from the second epoch on",
        edits=[
            ("    model.train()\n    running = 0.0\n", "    running = 0.0\n"),
            (
                "    log = []\n    while",
                "    log = []\n    model.train()\n    while",
            ),
        ],
        rules=("trained-in-eval-mode",),
        lines=(FORWARD, TRAIN, "model.eval()", "model.train()", BACKWARD, STEP, EVALUATE),
        names=("@", "unet", "*bn*"),
    ),
    _Fault(
        name="segmentation: evaluated in training mode",
        edits=[("    model.eval()\n    total", "    total")],
        rules=("evaluated-in-training-mode",),
        lines=(FORWARD, EVALUATE, TOTAL),
        names=("@", "unet", "*bn*"),
    ),
    _Fault(
        name="segmentation: the validation loader gets the training set",
        edits=[("DataLoader(val_set, batch_size=16)", "DataLoader(train_set, batch_size=16)")],
        rules=("evaluated-on-training-data",),
        lines=(
            FORWARD,
            EVALUATE,
            TOTAL,
            "for images, masks in loader:",
            "val_loader = DataLoader(train_set, batch_size=16)",
        ),
        names=("@", "unet"),
    ),
    _Fault(
        name="segmentation: the decoder is not given to the optimizer",
        edits=[
            (
                "        model.parameters(), lr=CFG",
                "        [p for n, p in model.named_parameters() if 'enc' in n or 'mid' in n],\n"
                "        lr=CFG",
            )
        ],
        rules=("never-updated",),
        lines=(STEP, "[p for n, p in model.named_parameters() if 'enc' in n or 'mid' in n],"),
        names=("up*", "dec*", "head*"),
    ),
    _Fault(
        name="segmentation: the schedule counts epochs, and is stepped after each update",
        edits=[('updates = steps // CFG["accumulate"] + 1', "updates = steps // len(train_loader)")],
        rules=("learning-rate-zero",),
        lines=(STEP, "scheduler.step()", "updates = steps // len(train_loader)"),
        names=("*",),
    ),
    _Fault(
        name="segmentation: the losses of an epoch are added up with their graphs",
        edits=[("running += loss.item()", "running += loss")],
        rules=("graph-leak",),
        lines=("running += loss", LOSS, TRAIN, BACKWARD),
    ),
    _Fault(
        name="segmentation: sixteen noisy pictures, no flips, a wide network",
        edits=[
            ("Shapes(240), Shapes(48)", "Shapes(16), Shapes(16)"),
            ("base=12", "base=18"),
            ("if torch.rand(()) < 0.5:", "if torch.rand(()) < 0:"),
            ("60 + 25 * torch.randn", "60 + 60 * torch.randn"),
        ],
        rules=("overfitting",),
        lines=(FORWARD, LOSS, BACKWARD, TOTAL, EVALUATE, ENTROPY, TRAIN),
        names=("*",),
    ),
    _Fault(
        name="segmentation: the shift of the last norm begins at -10",
        edits=[
            (
                "        self.head = nn.Conv2d(base, classes, 1)\n",
                "        self.head = nn.Conv2d(base, classes, 1)\n"
                "        nn.init.constant_(self.dec1.bn2.bias, -10.0)\n",
            )
        ],
        rules=("dead-units",),
        lines=(
            "return F.relu(self.bn2(self.conv2(x)), inplace=True)",
            "x = self.dec1(torch.cat([self.up1(x), skip1], dim=1))",
            "nn.init.constant_(self.dec1.bn2.bias, -10.0)",
        ),
        names=("dec1*",),
    ),
    _Fault(
        name="segmentation: the encoder is frozen as if it were pretrained",
        edits=[
            (
                '    model = UNet(CFG["classes"])\n',
                '    model = UNet(CFG["classes"])\n'
                "    for block in (model.enc1, model.enc2, model.mid):\n"
                "        block.requires_grad_(False)\n",
            )
        ],
        rules=("frozen-parameters",),
        lines=("block.requires_grad_(False)", STEP),
        names=("enc*", "mid*"),
    ),
]
