"""Faults of the MLP."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Fault

_Fault = partial(Fault, program="mlp")

CRITERION = "loss = criterion(out, y)"
BACKWARD = "loss.backward()"
STEP = "optimizer.step()"
EVALUATION = "out = model(x)"

FAULTS = [
    _Fault(
        name="mlp: gradients never zeroed",
        edits=[("        optimizer.zero_grad()\n", "")],
        rules=("stale-gradients",),
        lines=(BACKWARD, STEP),
        names=("*",),
    ),
    _Fault(
        name="mlp: gradients zeroed between backward and step",
        edits=[
            ("        optimizer.zero_grad()\n", ""),
            ("        loss.backward()\n", "        loss.backward()\n        optimizer.zero_grad()\n"),
        ],
        rules=("never-updated", "no-gradient-path"),
        lines=(STEP, "optimizer.zero_grad()"),
        names=("*",),
    ),
    _Fault(
        name="mlp: softmax before cross-entropy",
        edits=[("return self.head(x)", "return self.head(x).softmax(dim=-1)")],
        rules=("loss-input-is-probability",),
        lines=(CRITERION, BACKWARD, "return self.head(x).softmax(dim=-1)"),
    ),
    _Fault(
        name="mlp: NLLLoss of probabilities",
        edits=[
            ("return self.head(x)", "return self.head(x).softmax(dim=-1)"),
            ("criterion = nn.CrossEntropyLoss()", "criterion = nn.NLLLoss()"),
        ],
        rules=("loss-input-is-probability", "loss-wrong-sign"),
        lines=(CRITERION, BACKWARD, "return self.head(x).softmax(dim=-1)"),
    ),
    _Fault(
        name="mlp: softmax over the batch",
        edits=[
            ("return self.head(x)", "return torch.log_softmax(self.head(x), dim=0)"),
            ("criterion = nn.CrossEntropyLoss()", "criterion = nn.NLLLoss()"),
        ],
        rules=("softmax-over-batch",),
        lines=(CRITERION, BACKWARD, "return torch.log_softmax(self.head(x), dim=0)"),
    ),
    _Fault(
        name="mlp: all weights start at one value",
        edits=[
            (
                'nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")',
                "nn.init.constant_(layer.weight, 0.02)",
            )
        ],
        rules=("units-alike",),
        names=("first*", "body.*"),
    ),
    _Fault(
        name="mlp: weights start far too large",
        edits=[
            ('nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")', "nn.init.normal_(layer.weight)"),
            ("depth: int = 3", "depth: int = 5"),
        ],
        rules=("init-scale",),
        names=("first*", "body.*", "head*"),
    ),
    _Fault(
        name="mlp: the last layer starts far too large",
        edits=[
            (
                "            nn.init.zeros_(layer.bias)\n",
                "            nn.init.zeros_(layer.bias)\n"
                "        nn.init.normal_(self.head.weight, std=5.0)\n",
            )
        ],
        rules=("bad-initial-loss", "init-scale"),
        lines=(CRITERION, BACKWARD),
        names=("head*",),
    ),
    _Fault(
        name="mlp: deep and sigmoid",
        edits=[
            ("            x = torch.relu(layer(x))", "            x = torch.sigmoid(layer(x))"),
            ("depth: int = 3", "depth: int = 12"),
        ],
        rules=("vanishing-gradients",),
        names=("first*", "body.*"),
    ),
    _Fault(
        name="mlp: a layer of dead units",
        edits=[
            (
                "            nn.init.zeros_(layer.bias)\n",
                "            nn.init.zeros_(layer.bias)\n"
                "        nn.init.constant_(self.body[0].bias, -20.0)\n",
            )
        ],
        rules=("dead-units",),
        names=("body.0*",),
    ),
    _Fault(
        name="mlp: optimizer of another model",
        edits=[
            (
                "    losses: list[float] = []\n",
                "    model = Net(hidden=96)\n    losses: list[float] = []\n",
            )
        ],
        rules=("optimizer-of-other-parameters",),
        lines=(STEP,),
        names=("*",),
    ),
    _Fault(
        name="mlp: head replaced after the optimizer was made",
        edits=[
            (
                "    losses: list[float] = []\n",
                "    model.head = nn.Linear(64, CLASSES)\n    losses: list[float] = []\n",
            )
        ],
        rules=("never-updated", "optimizer-of-other-parameters"),
        names=("head*",),
    ),
    _Fault(
        name="mlp: learning rate far too small",
        edits=[("lr=2e-3", "lr=2e-9")],
        rules=("update-too-small",),
        lines=(STEP,),
        names=("*",),
    ),
    _Fault(
        name="mlp: left in eval mode after the first validation",
        edits=[
            ("    model.train()\n    running = 0.0\n", "    running = 0.0\n"),
            ("    model = Net()\n", "    model = Net().train()\n"),
        ],
        rules=("trained-in-eval-mode",),
        lines=(EVALUATION, BACKWARD, STEP),
        names=("dropout",),
    ),
    _Fault(
        name="mlp: validated in training mode",
        edits=[("    model.eval()\n", ""), ("dropout: float = 0.1", "dropout: float = 0.5")],
        rules=("evaluated-in-training-mode",),
        lines=(EVALUATION,),
        names=("dropout",),
    ),
    _Fault(
        name="mlp: the losses keep their graphs",
        edits=[
            ("        running += loss.item()\n", "        running += loss\n"),
            ("    return running / len(loader)\n", "    history.append(running)\n"),
            ("def evaluate(", "history = []\n\n\ndef evaluate("),
        ],
        rules=("graph-leak",),
        lines=("running += loss", "history.append(running)", CRITERION, BACKWARD),
    ),
    _Fault(
        name="mlp: labels do not belong to the rows",
        edits=[("return TensorDataset(x, y)", "return TensorDataset(x, y[torch.randperm(count)])")],
        rules=("not-learning", "labels-do-not-fit", "overfitting"),
        lines=(CRITERION, BACKWARD),
        names=("*",),
    ),
    _Fault(
        name="mlp: rows sorted by class, never shuffled",
        edits=[
            ("train_set, val_set = random_split(data, [1280, 320])", "train_set, val_set = data, data"),
            ("batch_size=32, shuffle=True", "batch_size=32"),
            (
                "    val_loader = DataLoader(val_set, batch_size=64)",
                "    val_loader = DataLoader(val_set, batch_size=64, shuffle=True)",
            ),
        ],
        rules=("sorted-data",),
        lines=(CRITERION, BACKWARD, "for x, y in loader:"),
    ),
    _Fault(
        name="mlp: validated on training rows",
        edits=[("DataLoader(val_set, batch_size=64)", "DataLoader(train_set, batch_size=64)")],
        rules=("evaluated-on-training-data",),
        lines=(EVALUATION, "for x, y in loader:"),
        names=("@",),
    ),
    _Fault(
        name="mlp: scheduler steps before the optimizer",
        edits=[
            ("        scheduler.step()\n", ""),
            ("        optimizer.zero_grad()\n", "        scheduler.step()\n        optimizer.zero_grad()\n"),
        ],
        rules=("scheduler-before-optimizer",),
        lines=("scheduler.step()", STEP),
        names=("*",),
    ),
    _Fault(
        name="mlp: inputs are not scaled",
        edits=[("x = (x - x.mean(0)) / x.std(0)", "x = 900 + 400 * x")],
        rules=("input-scale",),
        lines=(EVALUATION, CRITERION),
        names=("first*",),
    ),
    _Fault(
        name="mlp: hidden layer of one unit",
        edits=[("hidden: int = 64", "hidden: int = 1")],
        rules=("underfitting", "plateau", "not-learning", "dead-units"),
        lines=(CRITERION, BACKWARD),
        names=("*",),
    ),
    _Fault(
        name="mlp: 40 rows for a large network",
        edits=[
            ("random_split(data, [1280, 320])", "random_split(data, [40, 1560])"),
            (
                "hidden: int = 64, depth: int = 3, dropout: float = 0.1",
                "hidden: int = 128, depth: int = 3, dropout: float = 0.0",
            ),
            ("batch_size=32, shuffle=True", "batch_size=20, shuffle=True"),
        ],
        rules=("overfitting",),
        lines=(EVALUATION, CRITERION, BACKWARD, "total += criterion(out, y).item() * len(y)"),
        names=("*",),
    ),
]
