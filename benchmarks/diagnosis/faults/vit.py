"""Faults of the vision transformer."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Fault

_Fault = partial(Fault, program="vit")

FORWARD = "scores = model(pictures)"
CRITERION = "loss = criterion(scores, labels)"
BACKWARD = "loss.backward()"
STEP = "optimizer.step()"
LOOP = "for pictures, labels in train_loader:"
EVALUATION = "for pictures, labels in loader:"
RATE = "return (step + 1) / warm"

FAULTS = [
    _Fault(
        name="vit: pictures normalised by the dataset and again in the loop",
        edits=[
            (
                f"            {FORWARD}\n            {CRITERION}",
                f"            pictures = Normalize(MEAN, STD)(pictures)\n            {FORWARD}\n"
                f"            {CRITERION}",
            )
        ],
        rules=("normalised-twice", "input-scale"),
        lines=("pictures = Normalize(MEAN, STD)(pictures)", FORWARD, CRITERION),
        names=("patch*", "@"),
    ),
    _Fault(
        name="vit: pixels from 0 to 255",
        edits=[
            ("self.pictures[index].float() / 255", "self.pictures[index].float()"),
            ("Compose(Jitter(), Normalize(MEAN, STD))", "Compose(Jitter())"),
        ],
        rules=("input-scale",),
        lines=(FORWARD, CRITERION, "picture = self.pictures[index].float()"),
        names=("patch*", "@"),
    ),
    _Fault(
        name="vit: no positions",
        edits=[
            ("        self.position = nn.Parameter(0.2 * torch.randn(1, 17, width))\n", ""),
            ("        x = x + self.position\n", ""),
        ],
        rules=("order-ignored",),
        lines=(FORWARD, "x = block(x)", "x = self.patch(x).flatten(2).transpose(1, 2)"),
        names=("blocks*", "patch*", "@"),
    ),
    _Fault(
        name="vit: attention weights add up to one over the batch",
        edits=[("scores.softmax(dim=-1) @ value", "scores.softmax(dim=0) @ value")],
        rules=("softmax-over-batch",),
        lines=("x = scores.softmax(dim=0) @ value", FORWARD, CRITERION),
        names=("*attention*",),
    ),
    _Fault(
        name="vit: strong weight decay on everything",
        edits=[("groups(model, decay=0.05), lr=1.5e-3", "model.parameters(), lr=1.5e-3, weight_decay=0.5")],
        rules=("weight-decay-on-norms",),
        lines=(STEP,),
        names=("*norm*", "*bias", "token", "position"),
    ),
    _Fault(
        name="vit: untrained blocks are frozen",
        edits=[("    model = ViT()\n", "    model = ViT()\n    model.blocks.requires_grad_(False)\n")],
        rules=("frozen-parameters",),
        lines=("model.blocks.requires_grad_(False)",),
        names=("blocks*",),
    ),
    _Fault(
        name="vit: the warm-up ends at a hundredth of the rate",
        edits=[(RATE, "return 0.01 * (step + 1) / warm"), ("lr=1.5e-3", "lr=2e-2")],
        rules=("warm-up-cliff",),
        lines=("scheduler.step()", STEP, "return 0.01 * (step + 1) / warm"),
        names=("*",),
    ),
    _Fault(
        name="vit: the factor of the rate is a whole number",
        edits=[("lambda step: rate(step, 20, steps)", "lambda step: min(step, 20) // 20 * step // steps")],
        rules=("learning-rate-zero",),
        lines=(STEP, "scheduler.step()"),
        names=("*",),
    ),
    _Fault(
        name="vit: linear layers start with a deviation of one",
        edits=[("nn.init.xavier_uniform_(module.weight)", "nn.init.normal_(module.weight)")],
        rules=("init-scale",),
        lines=("nn.init.normal_(module.weight)",),
        names=("*qkv*", "*out*", "*mlp*", "head*", "blocks*"),
    ),
    _Fault(
        name="vit: a rate of 0.3 with AdamW",
        edits=[("lr=1.5e-3", "lr=0.3")],
        rules=("update-too-large", "diverging"),
        lines=(STEP,),
        names=("*",),
    ),
    _Fault(
        name="vit: the split overlaps",
        edits=[("order[:1440], order[1440:]", "order[:1440], order[:320]")],
        rules=("evaluated-on-training-data",),
        lines=(EVALUATION, FORWARD),
        names=("@",),
    ),
    _Fault(
        name="vit: pictures of a batch are shuffled, their labels are not",
        edits=[
            (
                f"            {FORWARD}\n            {CRITERION}",
                f"            pictures = pictures[torch.randperm(len(pictures))]\n            {FORWARD}\n"
                f"            {CRITERION}",
            )
        ],
        rules=("labels-do-not-fit", "not-learning"),
        lines=("pictures = pictures[torch.randperm(len(pictures))]", FORWARD, CRITERION, BACKWARD),
        names=("*",),
    ),
    _Fault(
        name="vit: patches are detached",
        edits=[
            (
                "x = self.patch(x).flatten(2).transpose(1, 2)",
                "x = self.patch(x).detach().flatten(2).transpose(1, 2)",
            )
        ],
        rules=("no-gradient-path", "never-updated"),
        lines=("x = self.patch(x).detach().flatten(2).transpose(1, 2)",),
        names=("patch*",),
    ),
    _Fault(
        name="vit: the loss is made anew from its number",
        edits=[
            (
                CRITERION,
                "loss = torch.tensor(criterion(scores, labels).item(), requires_grad=True)",
            )
        ],
        rules=("no-gradient-path",),
        lines=(
            "loss = torch.tensor(criterion(scores, labels).item(), requires_grad=True)",
            BACKWARD,
            STEP,
        ),
        names=("*",),
    ),
    _Fault(
        name="vit: the model is copied after the optimizer was made",
        edits=[
            ("import math\n", "import copy\nimport math\n"),
            (
                "    losses: list[float] = []\n",
                "    initial, model = model, copy.deepcopy(model)\n    losses: list[float] = []\n",
            ),
        ],
        rules=("optimizer-of-other-parameters", "never-updated"),
        lines=(STEP,),
        names=("*",),
    ),
]
