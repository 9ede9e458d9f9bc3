"""Faults of the listener that writes letters."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Fault

_Fault = partial(Fault, program="speech")

FORWARD = "log_probs, frames = model(features, lengths)"
CRITERION = "loss = criterion(log_probs, texts, frames, sizes)"
BACKWARD = "loss.backward()"
STEP = "optimizer.step()"
LOOP = "for features, lengths, texts, sizes in loader:"
RETURN = "return scores.transpose(0, 1).log_softmax(dim=2), lengths  # time first, as CTC wants it"
GRU = "self.rnn = nn.GRU(width, width, batch_first=True, bidirectional=True)"
CLIP = "        nn.utils.clip_grad_norm_(model.parameters(), 5.0)\n"
HEAD = "        self.head = nn.Linear(2 * width, LETTERS + 1)\n"

FAULTS = [
    _Fault(
        name="speech: fewer frames than letters",
        edits=[("STRIDE = 2\n", "STRIDE = 8\n")],
        rules=("non-finite",),
        lines=(CRITERION, BACKWARD),
        names=("*",),
    ),
    _Fault(
        name="speech: probabilities instead of their logarithms",
        edits=[("log_softmax(dim=2)", "softmax(dim=2)")],
        rules=("loss-input-is-probability",),
        lines=(CRITERION, BACKWARD, RETURN.replace("log_softmax", "softmax")),
    ),
    _Fault(
        name="speech: softmax over the utterances, as time and batch were swapped",
        edits=[("log_softmax(dim=2)", "log_softmax(dim=1)")],
        rules=("softmax-over-batch",),
        lines=(CRITERION, BACKWARD, RETURN.replace("dim=2", "dim=1")),
    ),
    _Fault(
        name="speech: gradients zeroed once an epoch",
        edits=[
            ("        optimizer.zero_grad()\n", ""),
            ("    model.train()\n", "    model.train()\n    optimizer.zero_grad()\n"),
        ],
        rules=("stale-gradients",),
        lines=(BACKWARD, STEP),
        names=("*",),
    ),
    _Fault(
        name="speech: a look at the text every 15 steps leaves it in eval mode",
        edits=[
            (
                "        losses.append(loss.item())\n",
                "        losses.append(loss.item())\n        if len(losses) % 15 == 5:\n"
                "            peek(model, features, lengths)\n",
            ),
            (
                "def train_epoch(",
                "@torch.no_grad()\ndef peek(model, features, lengths):\n    model.eval()\n"
                "    return decode(*model(features, lengths))\n\n\ndef train_epoch(",
            ),
        ],
        rules=("trained-in-eval-mode",),
        lines=(FORWARD, BACKWARD, STEP),
        names=("dropout", "norm", "@"),
    ),
    _Fault(
        name="speech: recurrence of ReLUs that doubles, gradients not clipped",
        edits=[
            (
                GRU,
                GRU.replace("nn.GRU(width, width,", 'nn.RNN(width, width, nonlinearity="relu",')
                + "\n        for weight in (self.rnn.weight_hh_l0, self.rnn.weight_hh_l0_reverse):\n"
                "            nn.init.orthogonal_(weight, gain=2.5)",
            ),
            (CLIP, ""),
        ],
        rules=("exploding-gradients", "init-scale"),
        lines=(BACKWARD, STEP),
        names=("rnn*", "norm*", "conv*"),
    ),
    _Fault(
        name="speech: outputs are kept with their graphs for a report",
        edits=[
            (
                "        losses.append(loss.item())\n",
                "        losses.append(loss.item())\n        report.append((log_probs, frames))\n",
            ),
            ("def train_epoch(", "report = []\n\n\ndef train_epoch("),
        ],
        rules=("graph-leak",),
        lines=("report.append((log_probs, frames))", FORWARD, CRITERION, BACKWARD),
    ),
    _Fault(
        name="speech: each step begins the loader anew",
        edits=[
            (
                f"    model.train()\n    {LOOP}\n",
                "    model.train()\n    for _ in range(len(loader)):\n"
                "        features, lengths, texts, sizes = next(iter(loader))\n",
            ),
            ("batch_size=16, shuffle=True, collate_fn", "batch_size=16, collate_fn"),
        ],
        rules=("repeated-samples", "overfitting"),
        lines=("features, lengths, texts, sizes = next(iter(loader))", FORWARD, CRITERION, BACKWARD),
        names=("@",),
    ),
    _Fault(
        name="speech: the one-cycle schedule never moves",
        edits=[("        scheduler.step()\n", "")],
        rules=("scheduler-never-stepped",),
        lines=(STEP,),
        names=("*",),
    ),
    _Fault(
        name="speech: a few recordings are a thousand times too loud",
        edits=[
            (
                "        return features, self.texts[index]\n",
                "        if index % 320 == 7:\n            features = 1000 * features\n"
                "        return features, self.texts[index]\n",
            )
        ],
        rules=("loss-spike", "input-scale", "exploding-gradients"),
        lines=(FORWARD, CRITERION, BACKWARD),
        names=("conv*", "@", "*"),
    ),
    _Fault(
        name="speech: two units for ten letters",
        edits=[("width: int = 48", "width: int = 2")],
        rules=("underfitting", "plateau"),
        lines=(CRITERION, BACKWARD),
        names=("*",),
    ),
    _Fault(
        name="speech: validated with dropout and norms in training mode",
        edits=[("    model.eval()\n", ""), ("dropout: float = 0.15", "dropout: float = 0.4")],
        rules=("evaluated-in-training-mode",),
        lines=(FORWARD,),
        names=("dropout", "norm", "@"),
    ),
    _Fault(
        name="speech: energies without logarithm",
        edits=[
            (
                "features = (self.energies[index].log() - self.mean) / self.std",
                "features = self.energies[index]",
            )
        ],
        rules=("input-scale",),
        lines=(FORWARD, CRITERION, "features = self.energies[index]"),
        names=("conv*", "@"),
    ),
    _Fault(
        name="speech: each parameter starts at one value",
        edits=[
            (
                HEAD,
                HEAD + "        for parameter in self.parameters():\n"
                "            nn.init.constant_(parameter, 0.1)\n",
            )
        ],
        rules=("units-alike",),
        names=("conv*", "rnn*", "norm*", "head*"),
    ),
    _Fault(
        name="speech: the loss is a sum over the batch",
        edits=[("nn.CTCLoss(blank=0)", 'nn.CTCLoss(blank=0, reduction="sum")')],
        rules=("loss-scales-with-batch",),
        lines=(CRITERION, BACKWARD),
    ),
]
