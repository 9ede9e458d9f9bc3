"""Faults of the LSTM."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Fault

_Fault = partial(Fault, program="lstm")

CRITERION = "loss = criterion(logits.flatten(0, 1), tags.flatten())"
BACKWARD = "loss.backward()"
STEP = "optimizer.step()"
CALL = "logits = model(words, lengths)"
VALIDATION = "values = [criterion(model(w, n).flatten(0, 1), t.flatten()).item() for w, t, n in loader]"

FAULTS = [
    _Fault(
        name="lstm: gradients never zeroed",
        edits=[("            optimizer.zero_grad()\n", "")],
        rules=("stale-gradients",),
        lines=(BACKWARD, STEP),
        names=("*",),
    ),
    _Fault(
        name="lstm: softmax before cross-entropy",
        edits=[("return self.classifier(out)", "return torch.softmax(self.classifier(out), dim=-1)")],
        rules=("loss-input-is-probability",),
        lines=(CRITERION, BACKWARD, "return torch.softmax(self.classifier(out), dim=-1)"),
    ),
    _Fault(
        name="lstm: softmax over time",
        edits=[
            ("return self.classifier(out)", "return torch.log_softmax(self.classifier(out), dim=0)"),
            ("nn.CrossEntropyLoss(ignore_index=IGNORE)", "nn.NLLLoss(ignore_index=IGNORE)"),
        ],
        rules=("softmax-over-batch",),
        lines=(CRITERION, BACKWARD, "return torch.log_softmax(self.classifier(out), dim=0)"),
    ),
    _Fault(
        name="lstm: every label is ignored",
        edits=[
            (
                "pad_sequence(tags, batch_first=True, padding_value=IGNORE)",
                "pad_sequence(tags, batch_first=True, padding_value=IGNORE).fill_(IGNORE)",
            )
        ],
        rules=("labels-all-ignored",),
        lines=(CRITERION, BACKWARD),
    ),
    _Fault(
        name="lstm: some batches have ignored labels only",
        edits=[
            (
                "            logits = model(words, lengths)\n",
                "            if len(losses) % 40 == 30:\n"
                "                tags = tags.masked_fill(tags < TAGS, IGNORE)\n"
                "            logits = model(words, lengths)\n",
            )
        ],
        rules=("labels-all-ignored",),
        lines=(CRITERION, BACKWARD),
    ),
    _Fault(
        name="lstm: learning rate far too large",
        edits=[("lr=5e-3", "lr=2.0")],
        rules=("update-too-large",),
        lines=(STEP,),
        names=("*",),
    ),
    _Fault(
        name="lstm: recurrent weights explode",
        edits=[
            (
                "nn.LSTM(width, hidden, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)",
                "nn.RNN(width, hidden, num_layers=2, batch_first=True, bidirectional=True, "
                "dropout=0.1, nonlinearity='relu')",
            ),
            (
                "        self.classifier = nn.Linear(2 * hidden, TAGS)\n",
                "        self.classifier = nn.Linear(2 * hidden, TAGS)\n"
                "        for name, weight in self.lstm.named_parameters():\n"
                "            if 'weight_hh' in name:\n"
                "                nn.init.orthogonal_(weight, gain=2.5)\n",
            ),
        ],
        rules=("exploding-gradients", "init-scale"),
        lines=(BACKWARD,),
        names=("lstm*", "embedding*"),
    ),
    _Fault(
        name="lstm: embedding not in the optimizer",
        edits=[
            (
                "torch.optim.Adam(model.parameters(), lr=5e-3)",
                "torch.optim.Adam([*model.lstm.parameters(), *model.classifier.parameters()], lr=5e-3)",
            )
        ],
        rules=("never-updated", "optimizer-of-other-parameters"),
        names=("embedding*",),
    ),
    _Fault(
        name="lstm: validation leaves eval mode on",
        edits=[("    model.train()\n    return sum(values)", "    return sum(values)")],
        rules=("trained-in-eval-mode",),
        lines=(CALL, BACKWARD, STEP),
        names=("dropout", "lstm"),
    ),
    _Fault(
        name="lstm: schedule per batch instead of per epoch",
        edits=[
            (
                "            optimizer.step()\n",
                "            optimizer.step()\n            scheduler.step()\n",
            ),
            ("                break\n        scheduler.step()\n", "                break\n"),
        ],
        rules=("learning-rate-zero", "update-too-small"),
        lines=(STEP, "scheduler.step()"),
        names=("*",),
    ),
    _Fault(
        name="lstm: tags in another order",
        edits=[
            (
                "self.items.append((words, table[words, before]))",
                "self.items.append((words, table[words, before][torch.randperm(length, "
                "generator=generator)]))",
            )
        ],
        rules=("not-learning", "labels-do-not-fit", "underfitting", "plateau"),
        lines=(CRITERION, BACKWARD),
        names=("*",),
    ),
    _Fault(
        name="lstm: hidden states rebuilt as a new tensor",
        edits=[
            (
                "        return self.classifier(out)",
                "        out = torch.tensor(out.tolist())\n        return self.classifier(out)",
            )
        ],
        rules=("no-gradient-path",),
        lines=("out = torch.tensor(out.tolist())",),
        names=("lstm*", "embedding*"),
    ),
    _Fault(
        name="lstm: validated on training sentences",
        edits=[("DataLoader(Sentences(96, seed + 500)", "DataLoader(Sentences(960, seed)")],
        rules=("evaluated-on-training-data",),
        lines=(VALIDATION,),
        names=("@",),
    ),
]
