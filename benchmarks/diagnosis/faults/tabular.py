"""Faults of the regression on a table with embeddings."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Fault

_Fault = partial(Fault, program="tabular")

CALL = "prediction = self.model(numeric, categorical)"
CRITERION = "loss = self.criterion(prediction, target)"
BACKWARD = "loss.backward()"
STEP = "self.optimizer.step()"
BODY = "layers += [nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(config.dropout)]"
RUN = "return self.out(self.body(x)).squeeze(1)"
STANDARDISE = "    numeric = (numeric - numeric[train].mean(dim=0)) / numeric[train].std(dim=0)\n"
TARGET = "target = (target - target[train].mean()) / target[train].std()"

FAULTS = [
    _Fault(
        name="tabular: a column of targets against a row of predictions",
        edits=[("target = price.log()", "target = price.log().unsqueeze(1)")],
        rules=("loss-broadcast",),
        lines=(CRITERION, BACKWARD),
        names=("@",),
    ),
    _Fault(
        name="tabular: columns in their own units",
        edits=[(STANDARDISE, "")],
        rules=("input-scale",),
        lines=(CALL, RUN),
        names=("body*", "@"),
    ),
    _Fault(
        name="tabular: some incomes are missing",
        edits=[
            (
                f"    {TARGET}\n",
                f"    {TARGET}\n    numeric[torch.arange(450, len(numeric), 900), 3] = float('nan')\n",
            )
        ],
        rules=("non-finite",),
        lines=(CALL, CRITERION, BACKWARD, RUN, "x = torch.cat([numeric, *embedded], dim=1)"),
        names=("body*", "@"),
    ),
    _Fault(
        name="tabular: embeddings in a plain list",
        edits=[
            (
                "nn.ModuleList([nn.Embedding(size, min(8, size)) for size in CATEGORIES])",
                "[nn.Embedding(size, min(8, size)) for size in CATEGORIES]",
            )
        ],
        rules=("never-updated", "optimizer-of-other-parameters"),
        lines=(
            "embedded = [layer(categorical[:, column]) for column, layer in enumerate(self.embeddings)]",
            "self.embeddings = [nn.Embedding(size, min(8, size)) for size in CATEGORIES]",
            STEP,
        ),
        names=("*mbedding*",),
    ),
    _Fault(
        name="tabular: gradients are cleared between backward and step",
        edits=[
            (
                f"        self.optimizer.zero_grad()\n        {BACKWARD}\n",
                f"        {BACKWARD}\n        self.optimizer.zero_grad()\n",
            )
        ],
        rules=("never-updated", "no-gradient-path"),
        lines=(STEP, "self.optimizer.zero_grad()", BACKWARD),
        names=("*", "@"),
    ),
    _Fault(
        name="tabular: the rate is a hundred thousand times too small",
        edits=[("lr: float = 3e-3", "lr: float = 3e-8")],
        rules=("update-too-small",),
        lines=(STEP,),
        names=("*",),
    ),
    _Fault(
        name="tabular: the rate is a thousand times too large",
        edits=[("lr: float = 3e-3", "lr: float = 3.0")],
        rules=("update-too-large",),
        lines=(STEP,),
        names=("*",),
    ),
    _Fault(
        name="tabular: biases far below zero before ReLU",
        edits=[
            (
                "            width = hidden\n",
                "            nn.init.constant_(layers[-3].bias, -6.0)\n            width = hidden\n",
            )
        ],
        rules=("dead-units",),
        lines=(RUN, BODY),
        names=("body*",),
    ),
    _Fault(
        name="tabular: tanh over weights of spread one",
        edits=[
            ("nn.ReLU()", "nn.Tanh()"),
            (
                "            width = hidden\n",
                "            nn.init.normal_(layers[-3].weight)\n            width = hidden\n",
            ),
        ],
        rules=("saturated-units", "init-scale"),
        lines=(RUN, "nn.init.normal_(layers[-3].weight)"),
        names=("body*",),
    ),
    _Fault(
        name="tabular: nine sigmoid layers",
        edits=[("nn.ReLU()", "nn.Sigmoid()"), ("(96, 64, 32)", "(64, 64, 64, 64, 64, 64, 64, 64, 32)")],
        rules=("vanishing-gradients", "init-scale"),
        lines=(BACKWARD, RUN),
        names=("body*", "embeddings*"),
    ),
    _Fault(
        name="tabular: each target is standardised by itself",
        edits=[
            ("target = price.log()", "target = price.log().unsqueeze(1)"),
            (TARGET, "target = (target - target.mean(dim=1, keepdim=True)).squeeze(1)"),
        ],
        rules=("constant-labels",),
        lines=(CRITERION, BACKWARD),
        names=("@",),
    ),
    _Fault(
        name="tabular: one target is thousands of times too large",
        edits=[(f"    {TARGET}\n", f"    {TARGET}\n    target[700] = 4000.0\n")],
        rules=("loss-spike",),
        lines=(CRITERION, BACKWARD),
        names=("@",),
    ),
    _Fault(
        name="tabular: forty rows are learned by heart",
        edits=[
            ("train_rows: int = 3200", "train_rows: int = 40"),
            ("batch_size: int = 64", "batch_size: int = 20"),
            ("eval_every: int = 50", "eval_every: int = 15"),
        ],
        rules=("overfitting",),
        lines=(CALL, "total += self.criterion(prediction, target).item()", CRITERION),
        names=("@",),
    ),
    _Fault(
        name="tabular: validation in training mode",
        edits=[("        self.model.eval()\n", "")],
        rules=("evaluated-in-training-mode",),
        lines=(CALL,),
        names=("@", "body*"),
    ),
    _Fault(
        name="tabular: bfloat16 weights with a small rate",
        edits=[
            ("lr: float = 3e-3", "lr: float = 1e-5"),
            ("model = TabularNet(config)", "model = TabularNet(config).to(torch.bfloat16)"),
            (
                "rows = TensorDataset(numeric, categorical, target)",
                "rows = TensorDataset(numeric.bfloat16(), categorical, target.bfloat16())",
            ),
        ],
        rules=("update-lost-to-rounding",),
        lines=(STEP,),
        names=("*",),
    ),
]
