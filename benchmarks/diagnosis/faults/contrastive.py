"""Faults of the contrastive training."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Fault

_Fault = partial(Fault, program="contrastive")

ENTROPY = "return F.cross_entropy(sim, target)"
LOSS = "loss = nt_xent(z1, z2, args.temperature)"
FORWARD = "z1, z2 = model(torch.cat([view1, view2])).chunk(2)"
BACKWARD = "scaler.scale(loss).backward()"
STEP = "scaler.step(optimizer)"
CLIP = "nn.utils.clip_grad_norm_(model.parameters(), args.clip)"
CALL = "losses.append(train_step(model, images[rows], optimizer, scaler, scheduler, args))"
KNN = "accuracy = knn_accuracy(model, images, labels, test_images, test_labels)"
KEYS = "keys = F.normalize(model.encoder((bank[:, :, 2:14, 2:14] - 0.5) / 0.25), dim=1)"
SCALED = (
    "    scaler.scale(loss).backward()\n    scaler.unscale_(optimizer)\n"
    "    nn.utils.clip_grad_norm_(model.parameters(), args.clip)\n"
    "    scaler.step(optimizer)\n    scaler.update()\n"
)
WHOLE = ("@", "simclr", "encoder*")

FAULTS = [
    _Fault(
        name="contrastive: similarities go through a softmax before cross-entropy",
        edits=[(ENTROPY, "return F.cross_entropy(sim.softmax(dim=1), target)")],
        rules=("loss-input-is-probability",),
        lines=("return F.cross_entropy(sim.softmax(dim=1), target)", LOSS, BACKWARD),
    ),
    _Fault(
        name="contrastive: each row is its own target, which is masked",
        edits=[("torch.cat([torch.arange(n, 2 * n), torch.arange(n)])", "torch.arange(2 * n)")],
        rules=("non-finite",),
        lines=(ENTROPY, LOSS, BACKWARD, "target = torch.arange(2 * n)"),
    ),
    _Fault(
        name="contrastive: both views are the same",
        edits=[("view1, view2 = augment(images), augment(images)", "view1 = view2 = augment(images)")],
        rules=("repeated-samples",),
        lines=("view1 = view2 = augment(images)", FORWARD, LOSS),
        names=WHOLE,
    ),
    _Fault(
        name="contrastive: the encoder stays frozen after the first test",
        edits=[("    model.eval()\n", "    model.eval()\n    model.encoder.requires_grad_(False)\n")],
        rules=("frozen-parameters",),
        lines=("model.encoder.requires_grad_(False)", STEP),
        names=("encoder*",),
    ),
    _Fault(
        name="contrastive: tested in training mode",
        edits=[("    model.eval()\n", "")],
        rules=("evaluated-in-training-mode",),
        lines=(KNN, KEYS),
        names=WHOLE,
    ),
    _Fault(
        name="contrastive: evaluation mode after the first test",
        edits=[("    model.train()\n    return (guess", "    return (guess")],
        rules=("trained-in-eval-mode",),
        lines=(FORWARD, "model.eval()", BACKWARD, STEP, CALL, KNN),
        names=WHOLE,
    ),
    _Fault(
        name="contrastive: a temperature of 0.002",
        edits=[("default=0.2)", "default=0.002)")],
        rules=("bad-initial-loss",),
        lines=(ENTROPY, LOSS, BACKWARD, "sim = z @ z.t() / temperature"),
    ),
    _Fault(
        name="contrastive: clipped before the scale is taken out",
        edits=[
            ("    scaler.unscale_(optimizer)\n", ""),
            (f"    {CLIP}\n", f"    {CLIP}\n    scaler.unscale_(optimizer)\n"),
        ],
        rules=("clipped-before-unscale",),
        lines=(CLIP, "scaler.unscale_(optimizer)", STEP),
        names=("*",),
    ),
    _Fault(
        name="contrastive: float16 without the scaler",
        edits=[(SCALED, f"    loss.backward()\n    {CLIP}\n    optimizer.step()\n")],
        rules=("half-precision-without-scaler",),
        lines=("loss.backward()", "optimizer.step()", FORWARD, LOSS),
        names=("*",),
    ),
    _Fault(
        name="contrastive: the scheduler steps first",
        edits=[
            ("    scaler.update()\n    scheduler.step()\n", "    scaler.update()\n"),
            ("    view1, view2 =", "    scheduler.step()\n    view1, view2 ="),
        ],
        rules=("scheduler-before-optimizer",),
        lines=("scheduler.step()", STEP),
        names=("*",),
    ),
    _Fault(
        name="contrastive: the loss is summed, and nothing is clipped",
        edits=[
            (ENTROPY, 'return F.cross_entropy(sim, target, reduction="sum")'),
            ("default=5.0", "default=1e9"),
        ],
        rules=("loss-scales-with-batch",),
        lines=('return F.cross_entropy(sim, target, reduction="sum")', LOSS, BACKWARD),
    ),
    _Fault(
        name="contrastive: only the projector is given to the optimizer",
        edits=[
            ("        model.parameters(), lr=args.lr", "        model.projector.parameters(), lr=args.lr")
        ],
        rules=("never-updated",),
        lines=(STEP,),
        names=("encoder*",),
    ),
    _Fault(
        name="contrastive: a weight decay of 1 for all",
        edits=[("default=1e-4)", "default=1.0)")],
        rules=("weight-decay-on-norms",),
        lines=(STEP, "optimizer = torch.optim.SGD("),
        names=("encoder.*.1.*", "projector.1.*", "*.bias"),
    ),
]
