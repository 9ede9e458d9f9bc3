"""Faults of the recommender."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Fault

_Fault = partial(Fault, program="recommender")

FORWARD = "click, stars = model(*inputs)"
LOSS = "loss = objective(click, stars, clicked, rated)"
CLICKS = "click_loss = F.binary_cross_entropy_with_logits(click, clicked)"
STARS = "star_loss = F.mse_loss(stars, rated)"
BACKWARD = "(loss / ACCUMULATE).backward()"
STEP = "optimizer.step()"
LOOP = "for number, (inputs, (clicked, rated)) in enumerate(loader, start=1):"
WEIGHTS = "weights = weights.masked_fill(history == 0, -1e4).softmax(dim=1)"
CLICK = "click = (user * item).sum(dim=1) + self.bias"
TABLES = ("films*", "tags*")
ZERO = "            for optimizer in optimizers:\n                optimizer.zero_grad()\n"
SCHEDULERS = "        for scheduler in schedulers:\n            scheduler.step()\n"
EPOCH = "        train_epoch(model, train_loader, (sparse, dense), losses, steps)\n"

FAULTS = [
    _Fault(
        name="recommender: sigmoid before the loss with logits",
        edits=[(CLICK, "click = torch.sigmoid((user * item).sum(dim=1) + self.bias)")],
        rules=("loss-input-is-probability",),
        lines=(
            CLICKS,
            LOSS,
            BACKWARD,
            "click = torch.sigmoid((user * item).sum(dim=1) + self.bias)",
        ),
    ),
    _Fault(
        name="recommender: stars are a column, their targets a row",
        edits=[("user * item], dim=1)).squeeze(-1)", "user * item], dim=1))")],
        rules=("loss-broadcast",),
        lines=(
            STARS,
            LOSS,
            BACKWARD,
            "stars = self.stars(torch.cat([user, item, user * item], dim=1))",
        ),
    ),
    _Fault(
        name="recommender: four micro-batches are added up, not divided",
        edits=[(BACKWARD, "loss.backward()")],
        rules=("accumulation-undivided",),
        lines=("loss.backward()", STEP, LOSS),
        names=("*",),
    ),
    _Fault(
        name="recommender: attends to the padding of a history only",
        edits=[("masked_fill(history == 0, -1e4)", "masked_fill(history != 0, -1e4)")],
        rules=("mask-inverted",),
        lines=(WEIGHTS.replace("==", "!="), "user = self.user(self.pooled(history))", FORWARD),
        names=("interest*", "films*", "@"),
    ),
    _Fault(
        name="recommender: padding takes part in the history",
        edits=[
            (".masked_fill(history == 0, -1e4)", ""),
            ("width, padding_idx=0, sparse=True", "width, sparse=True"),
        ],
        rules=("padding-attended",),
        lines=("weights = weights.softmax(dim=1)", "user = self.user(self.pooled(history))", FORWARD),
        names=("interest*", "films*", "@"),
    ),
    _Fault(
        name="recommender: all of an empty history is masked with infinity",
        edits=[("-1e4", 'float("-inf")')],
        rules=("non-finite",),
        lines=(
            WEIGHTS.replace("-1e4", 'float("-inf")'),
            "return known * (weights[..., None] * watched).sum(dim=1)",
            "user = self.user(self.pooled(history))",
        ),
        names=("interest*", "films*"),
    ),
    _Fault(
        name="recommender: no visit counts as a click",
        edits=[("(taste > 1.5)", "(taste > 15)")],
        rules=("constant-labels",),
        lines=(CLICKS, LOSS, BACKWARD, LOOP),
    ),
    _Fault(
        name="recommender: clicks last, never shuffled",
        edits=[
            (
                "        self.stars = (taste - taste.mean()) / taste.std()\n",
                "        self.stars = (taste - taste.mean()) / taste.std()\n"
                "        order = self.clicked.argsort()\n"
                "        self.history, self.film = self.history[order], self.film[order]\n"
                "        self.clicked, self.stars = self.clicked[order], self.stars[order]\n",
            ),
            ("batch_size=8, shuffle=True", "batch_size=8"),
        ],
        rules=("sorted-data",),
        lines=(LOOP, CLICKS, LOSS, BACKWARD),
    ),
    _Fault(
        name="recommender: 64 visits for wide towers",
        edits=[
            ("Visits(1440, catalogue)", "Visits(64, catalogue)"),
            ("hidden: int = 48, dropout: float = 0.1", "hidden: int = 256, dropout: float = 0.0"),
            ("gamma=0.7", "gamma=0.995"),
        ],
        rules=("overfitting",),
        lines=(
            FORWARD,
            LOSS,
            BACKWARD,
            CLICKS,
            "total += objective(click, stars, clicked, rated).item() * len(clicked)",
        ),
        names=("*",),
    ),
    _Fault(
        name="recommender: bfloat16 weights with a rate too small for them",
        edits=[
            ("    model = Recommender()\n", "    model = Recommender().bfloat16()\n"),
            ("self.tags(tags), price[:, None]]", "self.tags(tags), price[:, None].bfloat16()]"),
            ("model.tags.weight], lr=1e-2", "model.tags.weight], lr=1e-4"),
            ("lr=0.05", "lr=1e-3"),
        ],
        rules=("update-lost-to-rounding",),
        lines=(STEP,),
        names=("*",),
    ),
    _Fault(
        name="recommender: the first layer of the film tower is dead",
        edits=[
            (
                "        self.bias = nn.Parameter(torch.zeros(1))\n",
                "        self.bias = nn.Parameter(torch.zeros(1))\n"
                "        nn.init.constant_(self.item[0].bias, -9.0)\n",
            )
        ],
        rules=("dead-units",),
        names=("item*",),
    ),
    _Fault(
        name="recommender: the optimizer of the tables is forgotten",
        edits=[("train_loader, (sparse, dense), losses", "train_loader, (dense,), losses")],
        rules=("never-updated",),
        lines=(STEP,),
        names=TABLES,
    ),
    _Fault(
        name="recommender: gradients of the tables are never zeroed",
        edits=[(ZERO, "            optimizers[1].zero_grad()\n")],
        rules=("stale-gradients",),
        lines=(BACKWARD, STEP),
        names=TABLES,
    ),
    _Fault(
        name="recommender: the second task is subtracted",
        edits=[("click_loss + 0.5 * star_loss", "click_loss - 0.5 * star_loss")],
        rules=("loss-wrong-sign", "diverging"),
        lines=(LOSS, BACKWARD, "return click_loss - 0.5 * star_loss"),
        names=("*",),
    ),
    _Fault(
        name="recommender: schedulers step at the beginning of an epoch",
        edits=[
            (EPOCH, SCHEDULERS + EPOCH),
            ("        evaluate(model, val_loader)\n" + SCHEDULERS, "        evaluate(model, val_loader)\n"),
        ],
        rules=("scheduler-before-optimizer",),
        lines=("scheduler.step()", STEP),
        names=("*",),
    ),
    _Fault(
        name="recommender: a rate far too large for momentum",
        edits=[("        lr=0.05,\n        momentum=0.9,\n", "        lr=2.0,\n        momentum=0.95,\n")],
        rules=("update-too-large", "diverging", "non-finite", "oscillating", "exploding-gradients"),
        lines=(STEP, LOSS, BACKWARD),
        names=("*",),
    ),
]
