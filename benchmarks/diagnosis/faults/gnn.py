"""Faults of the network on graphs."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Fault

_Fault = partial(Fault, program="gnn")

CALL = "logits = model(features, edges, owner, len(labels))"
CRITERION = "loss = criterion(logits, labels) / accumulate"
BACKWARD = "loss.backward()"
STEP = "optimizer.step()"
ZERO = "                optimizer.zero_grad()\n"
NORMS = ("layers.?.mlp*", "layers.?", "@")

FAULTS = [
    _Fault(
        name="gnn: accumulated losses are not divided",
        edits=[(CRITERION, "loss = criterion(logits, labels)")],
        rules=("accumulation-undivided",),
        lines=("loss = criterion(logits, labels)", BACKWARD, STEP),
        names=("*", "@"),
    ),
    _Fault(
        name="gnn: gradients are cleared once an epoch",
        edits=[
            (ZERO, ""),
            ("        model.train()\n", "        model.train()\n        optimizer.zero_grad()\n"),
        ],
        rules=("stale-gradients",),
        lines=(BACKWARD, STEP),
        names=("*",),
    ),
    _Fault(
        name="gnn: graphs sorted by their label, not shuffled",
        edits=[
            ("self.graphs = [graphs[number] for number in order]", "self.graphs = graphs"),
            ("batch_size=32, shuffle=True", "batch_size=32, shuffle=False"),
        ],
        rules=("sorted-data",),
        lines=(CALL, CRITERION, BACKWARD),
        names=("@",),
    ),
    _Fault(
        name="gnn: sigmoid in the model and a loss on logits",
        edits=[
            (
                "return self.readout(torch.cat([mean, total], dim=1)).squeeze(1)",
                "return torch.sigmoid(self.readout(torch.cat([mean, total], dim=1)).squeeze(1))",
            )
        ],
        rules=("loss-input-is-probability",),
        lines=(
            CRITERION,
            BACKWARD,
            "return torch.sigmoid(self.readout(torch.cat([mean, total], dim=1)).squeeze(1))",
        ),
    ),
    _Fault(
        name="gnn: the root of a distance of zero",
        edits=[
            (
                "        received = torch.zeros_like(x).index_add_(0, target, x[source])\n",
                "        distance = (x[source] - x[target]).pow(2).sum(dim=1, keepdim=True).sqrt()\n"
                "        near = torch.exp(-distance) * x[source]\n"
                "        received = torch.zeros_like(x).index_add_(0, target, near)\n",
            )
        ],
        rules=("non-finite",),
        lines=(BACKWARD, "distance = (x[source] - x[target]).pow(2).sum(dim=1, keepdim=True).sqrt()"),
        names=("layers.0*", "encoder*"),
    ),
    _Fault(
        name="gnn: the likelihood is maximised the wrong way",
        edits=[(CRITERION, "loss = -criterion(logits, labels) / accumulate")],
        rules=("loss-wrong-sign",),
        lines=("loss = -criterion(logits, labels) / accumulate", BACKWARD),
        names=("@",),
    ),
    _Fault(
        name="gnn: evaluated on the graphs that it learns from",
        edits=[("test_loader = DataLoader(test_set", "test_loader = DataLoader(train_set")],
        rules=("evaluated-on-training-data",),
        lines=(CALL,),
        names=("@",),
    ),
    _Fault(
        name="gnn: always the first batch of the loader",
        edits=[
            ("batch_size=32, shuffle=True", "batch_size=32, shuffle=False"),
            (
                "for number, (features, edges, owner, labels) in enumerate(train_loader, 1):\n",
                "for number in range(1, len(train_loader) + 1):\n"
                "            features, edges, owner, labels = next(iter(train_loader))\n",
            ),
        ],
        rules=("repeated-samples",),
        lines=(CALL, "features, edges, owner, labels = next(iter(train_loader))"),
        names=("@", "encoder"),
    ),
    _Fault(
        name="gnn: the model is made anew after its optimizer",
        edits=[("    losses = []\n", "    losses = []\n    model = GraphNet()\n")],
        rules=("optimizer-of-other-parameters", "never-updated"),
        lines=(STEP, "model = GraphNet()"),
        names=("*", "@"),
    ),
    _Fault(
        name="gnn: train mode is set once, before the first evaluation",
        edits=[
            (
                "    while len(losses) < steps:\n        model.train()\n",
                "    model.train()\n    while len(losses) < steps:\n",
            )
        ],
        rules=("trained-in-eval-mode",),
        lines=(CALL, BACKWARD, STEP),
        names=NORMS,
    ),
    _Fault(
        name="gnn: the schedule of epochs is stepped with each batch",
        edits=[
            ("        scheduler.step()\n        evaluate", "        evaluate"),
            ("            loss.backward()\n", "            loss.backward()\n            scheduler.step()\n"),
        ],
        rules=("learning-rate-zero", "update-too-small"),
        lines=(STEP, "scheduler.step()"),
        names=("*",),
    ),
    _Fault(
        name="gnn: ten layers add up neighbours without a norm",
        edits=[
            ("depth: int = 3", "depth: int = 10"),
            (
                "nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), "
                "nn.Linear(width, width), nn.ReLU()\n",
                "nn.Linear(width, width), nn.ReLU()\n",
            ),
            (
                "        self.readout =",
                "        for layer in self.layers:\n"
                "            nn.init.kaiming_normal_(layer.mlp[0].weight)\n"
                "        self.readout =",
            ),
        ],
        rules=("init-scale", "exploding-gradients"),
        lines=(CALL, BACKWARD, "x = layer(x, edges)"),
        names=("layers*", "readout*", "encoder*"),
    ),
    _Fault(
        name="gnn: the encoder was left frozen",
        edits=[
            (
                "    criterion =",
                "    for parameter in [*model.encoder.parameters(), *model.layers.parameters()]:\n"
                "        parameter.requires_grad_(False)\n"
                "    criterion =",
            )
        ],
        rules=("frozen-parameters",),
        names=("encoder*", "layers*"),
    ),
]
