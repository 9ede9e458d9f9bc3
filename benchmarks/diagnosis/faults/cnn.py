"""Faults of the CNN with BatchNorm."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Fault

_Fault = partial(Fault, program="cnn")

CRITERION = "loss = F.cross_entropy(logits, labels, label_smoothing=0.05)"
BACKWARD = "loss.backward()"
STEP = "optimizer.step()"
CALL = "logits = model(images)"
EVALUATION = "right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in loader)"

FAULTS = [
    _Fault(
        name="cnn: learning rate far too large",
        edits=[("lr=0.1, momentum", "lr=40.0, momentum"), ("max_lr=0.1", "max_lr=40.0")],
        rules=("update-too-large",),
        lines=(STEP,),
        names=("*",),
    ),
    _Fault(
        name="cnn: features computed without gradient",
        edits=[
            (
                "        x = self.stem(x)\n        x = self.layer3(self.layer2(self.layer1(x)))\n",
                "        with torch.no_grad():\n            x = self.stem(x)\n"
                "            x = self.layer3(self.layer2(self.layer1(x)))\n",
            )
        ],
        rules=("no-gradient-path",),
        lines=("with torch.no_grad():",),
        names=("stem*", "layer*"),
    ),
    _Fault(
        name="cnn: left in eval mode after the first validation",
        edits=[
            ("        model.train()\n        for images", "        for images"),
            ("    model = ConvNet()\n", "    model = ConvNet().train()\n"),
        ],
        rules=("trained-in-eval-mode",),
        lines=(CALL, BACKWARD, STEP),
        names=("*bn*", "stem.1", "*shortcut.1", "stem*"),
    ),
    _Fault(
        name="cnn: validated in training mode",
        edits=[("    model.eval()\n", "")],
        rules=("evaluated-in-training-mode",),
        lines=(EVALUATION,),
        names=("*bn*", "stem.1", "*shortcut.1"),
    ),
    _Fault(
        name="cnn: only the norms and the head learn",
        edits=[
            (
                "    model = ConvNet()\n",
                "    model = ConvNet()\n    for name, parameter in model.named_parameters():\n"
                '        parameter.requires_grad = parameter.dim() == 1 or name == "fc.bias"\n',
            )
        ],
        rules=("frozen-parameters",),
        names=("*conv*", "stem.0*", "fc.weight", "*shortcut.0*"),
    ),
    _Fault(
        name="cnn: normalised twice",
        edits=[
            (
                "        if self.augment and",
                "        image = (image - MEAN) / STD\n        if self.augment and",
            )
        ],
        rules=("normalised-twice", "input-scale"),
        lines=(CALL,),
        names=("stem*", "@"),
    ),
    _Fault(
        name="cnn: bytes as inputs",
        edits=[
            ("image = self.images[index].float() / 255", "image = self.images[index].float()"),
            ("        image = (image - MEAN) / STD\n", ""),
        ],
        rules=("input-scale",),
        lines=(CALL,),
        names=("stem*", "@"),
    ),
    _Fault(
        name="cnn: every label is the same",
        edits=[("label = self.labels[index]", "label = self.labels[index * 0]")],
        rules=("constant-labels",),
        lines=(CRITERION, BACKWARD),
    ),
    _Fault(
        name="cnn: rows sorted by class, never shuffled",
        edits=[
            (
                "        self.augment = augment\n",
                "        order = self.labels.argsort()\n"
                "        self.images, self.labels = self.images[order], self.labels[order]\n"
                "        self.augment = augment\n",
            ),
            ("batch_size=24, shuffle=True", "batch_size=24, shuffle=False"),
        ],
        rules=("sorted-data",),
        lines=(CRITERION, BACKWARD, CALL, "for images, labels in loader:"),
    ),
    _Fault(
        name="cnn: some broken pictures",
        edits=[
            (
                "        label = self.labels[index]\n",
                "        if self.augment and index == 7:\n            image = image * 1e4\n"
                "        label = self.labels[index]\n",
            )
        ],
        rules=("loss-spike", "input-scale"),
        lines=(CRITERION, BACKWARD, CALL),
        names=("stem*", "@"),
    ),
    _Fault(
        name="cnn: losses kept with their graphs",
        edits=[
            ("losses.append(loss.item())", "losses.append(loss)"),
            ("    return losses, model", "    return [loss.item() for loss in losses], model"),
        ],
        rules=("graph-leak",),
        lines=("losses.append(loss)", CRITERION, BACKWARD),
    ),
    _Fault(
        name="cnn: scheduler never stepped",
        edits=[("            scheduler.step()\n", "")],
        rules=("scheduler-never-stepped",),
        lines=(
            STEP,
            "scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)",
        ),
        names=("*",),
    ),
    _Fault(
        name="cnn: stem made dead by its BatchNorm",
        edits=[
            (
                "        self.fc = nn.Linear(4 * width, CLASSES)\n",
                "        self.fc = nn.Linear(4 * width, CLASSES)\n"
                "        nn.init.constant_(self.stem[1].bias, -8.0)\n",
            )
        ],
        rules=("dead-units",),
        names=("stem*",),
    ),
    _Fault(
        name="cnn: head frozen at zero",
        edits=[
            (
                "self.fc = nn.Linear(4 * width, CLASSES)",
                "self.fc = nn.Linear(4 * width, CLASSES)\n"
                "        nn.init.zeros_(self.fc.weight)\n"
                "        self.fc.requires_grad_(False)",
            )
        ],
        rules=("frozen-parameters", "not-learning"),
        names=("fc*",),
        lines=(CRITERION, BACKWARD),
    ),
]
