"""Faults of the regression."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Fault

_Fault = partial(Fault, program="regression")

CRITERION = "loss = loss_fn(pred, y)"
BACKWARD = "loss.backward()"
STEP = "optimizer.step()"
CALL = "pred = model(x)"
EVALUATION = "squares = [loss_fn(model(x), y).item() for x, y in loader]"

FAULTS = [
    _Fault(
        name="regression: prediction and target broadcast",
        edits=[
            ("return self.net(x).squeeze(-1)", "return self.net(x)"),
            (f"            {CRITERION}\n", "            loss = ((pred - y) ** 2).mean()\n"),
        ],
        rules=("loss-broadcast",),
        lines=("loss = ((pred - y) ** 2).mean()", BACKWARD),
    ),
    _Fault(
        name="regression: MSELoss broadcasts",
        edits=[("return self.net(x).squeeze(-1)", "return self.net(x)")],
        rules=("loss-broadcast",),
        lines=(CRITERION, BACKWARD),
    ),
    _Fault(
        name="regression: the loss is a sum",
        edits=[("nn.MSELoss()", 'nn.MSELoss(reduction="sum")')],
        rules=("loss-scales-with-batch",),
        lines=(CRITERION, BACKWARD),
    ),
    _Fault(
        name="regression: columns are not scaled",
        edits=[("    train_x, val_x = scale_x(train_x), scale_x(val_x)\n", "")],
        rules=("input-scale",),
        lines=(CALL,),
        names=("net.0*", "@"),
    ),
    _Fault(
        name="regression: missing values",
        edits=[
            (
                "    features = torch.cat([torch.stack",
                "    area[torch.randperm(count)[:12]] = float('nan')\n    features = torch.cat([torch.stack",
            ),
            (
                "self.mean, self.std = values.mean(0), values.std(0)",
                "self.mean, self.std = values.nanmean(0), values.nan_to_num(90.0).std(0)",
            ),
        ],
        rules=("non-finite",),
        lines=(CALL, CRITERION, BACKWARD),
        names=("net.0*", "@"),
    ),
    _Fault(
        name="regression: learning rate too large",
        edits=[("lr=0.02", "lr=3.0")],
        rules=("update-too-large", "diverging"),
        lines=(STEP, BACKWARD),
        names=("*",),
    ),
    _Fault(
        name="regression: rate at the edge, loss swings",
        edits=[
            ("lr=0.02, momentum=0.9", "lr=0.5"),
            ("nn.MSELoss()", "nn.L1Loss()"),
            ("batch_size=40, shuffle=True", "batch_size=400, shuffle=True"),
            ("patience=2", "patience=90"),
        ],
        rules=("oscillating", "update-too-large", "plateau"),
        lines=(STEP, BACKWARD, CRITERION),
        names=("*",),
    ),
    _Fault(
        name="regression: learning rate far too small",
        edits=[("lr=0.02", "lr=2e-9")],
        rules=("update-too-small",),
        lines=(STEP,),
        names=("*",),
    ),
    _Fault(
        name="regression: learning rate zero",
        edits=[("lr=0.02", "lr=0.0")],
        rules=("learning-rate-zero",),
        lines=(STEP,),
        names=("*",),
    ),
    _Fault(
        name="regression: saturated by large weights",
        edits=[
            (
                "        )\n\n    def forward",
                "        )\n        nn.init.normal_(self.net[2].weight, std=20.0)\n\n    def forward",
            )
        ],
        rules=("saturated-units", "init-scale"),
        names=("net.2*", "net.3*"),
    ),
    _Fault(
        name="regression: all weights of a layer alike",
        edits=[
            (
                "        )\n\n    def forward",
                "        )\n"
                "        for layer in self.net[::2]:\n"
                "            nn.init.constant_(layer.weight, 0.1)\n"
                "\n"
                "    def forward",
            )
        ],
        rules=("units-alike",),
        names=("net.*",),
    ),
    _Fault(
        name="regression: an outlier of a million",
        edits=[
            (
                "    return features, price + 4 * torch.randn(count)",
                "    price[5] = 2e7\n    return features, price + 4 * torch.randn(count)",
            ),
            (
                "self.mean, self.std = values.mean(0), values.std(0)",
                "self.mean, self.std = values.median(0).values, "
                "values.sort(0).values[count_of(values)].std(0)",
            ),
            (
                "class Scaler:",
                "def count_of(values):\n"
                "    return slice(len(values) // 20, -len(values) // 20)\n"
                "\n"
                "\n"
                "class Scaler:",
            ),
        ],
        rules=("loss-spike", "labels-do-not-fit"),
        lines=(CRITERION, BACKWARD),
    ),
    _Fault(
        name="regression: targets constant",
        edits=[
            (
                "train_y, val_y = price[:1200], price[1200:]",
                "train_y, val_y = 0 * price[:1200] + 1, price[1200:]",
            ),
            (
                "train_y, val_y = scale_y(train_y), scale_y(val_y)",
                "val_y = (val_y - val_y.mean()) / val_y.std()",
            ),
        ],
        rules=("constant-labels",),
        lines=(CRITERION, BACKWARD),
    ),
    _Fault(
        name="regression: targets in another order",
        edits=[
            (
                "    return features, price + 4 * torch.randn(count)",
                "    return features, price[torch.randperm(count)]",
            )
        ],
        rules=("not-learning", "labels-do-not-fit"),
        lines=(CRITERION, BACKWARD),
        names=("*",),
    ),
    _Fault(
        name="regression: the loss is maximised",
        edits=[("            loss = loss_fn(pred, y)", "            loss = -loss_fn(pred, y)")],
        rules=("loss-wrong-sign",),
        lines=("loss = -loss_fn(pred, y)", BACKWARD),
    ),
    _Fault(
        name="regression: prediction detached from the last layer on",
        edits=[
            (
                "            loss = loss_fn(pred, y)",
                "            loss = loss_fn(model.net[4](model.net[:4](x).detach()).squeeze(-1), y)",
            )
        ],
        rules=("no-gradient-path",),
        lines=("loss = loss_fn(model.net[4](model.net[:4](x).detach()).squeeze(-1), y)",),
        names=("net.0*", "net.2*"),
    ),
    _Fault(
        name="regression: always the first batch",
        edits=[
            (
                "        for x, y in train_loader:\n",
                "        for _ in train_loader:\n            x, y = next(iter(fixed))\n",
            ),
            (
                "    losses: list[float] = []\n",
                "    fixed = DataLoader(TensorDataset(train_x, train_y), batch_size=40)\n"
                "    losses: list[float] = []\n",
            ),
        ],
        rules=("repeated-samples",),
        lines=(CALL, CRITERION, BACKWARD, "x, y = next(iter(fixed))"),
        names=("@",),
    ),
]
