"""Sound changes of the contrastive training."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Healthy

_Variant = partial(Healthy, program="contrastive")

CAST = 'with torch.autocast("cpu", dtype=torch.float16):'
SCALER = 'torch.amp.GradScaler("cpu", init_scale=1024.0)'
BFLOAT = [(CAST, CAST.replace("float16", "bfloat16")), (SCALER, 'torch.amp.GradScaler("cpu", enabled=False)')]

VARIANTS = [
    _Variant(
        name="contrastive: bfloat16, the scaler is there and switched off",
        edits=BFLOAT,
    ),
    _Variant(
        name="contrastive: each view is compared with the other views alone, both ways",
        edits=[
            *BFLOAT,
            (
                "    return F.cross_entropy(sim, target)\n",
                "    across = sim[:n, n:]\n"
                "    there = F.cross_entropy(across, target[n:])\n"
                "    return (there + F.cross_entropy(across.t(), target[n:])) / 2\n",
            ),
        ],
    ),
    _Variant(
        name="contrastive: the second view has no gradient",
        edits=[
            *BFLOAT,
            (
                "    loss = nt_xent(z1, z2, args.temperature)\n",
                "    loss = nt_xent(z1, z2.detach(), args.temperature)\n",
            ),
        ],
    ),
    _Variant(
        name="contrastive: the stem is random and frozen, AdamW",
        edits=[
            *BFLOAT,
            (
                "    model = SimCLR()\n",
                "    model = SimCLR()\n    model.encoder.stem.requires_grad_(False)\n",
            ),
            (
                "torch.optim.SGD(\n        model.parameters(), lr=args.lr, momentum=args.momentum, "
                "weight_decay=args.weight_decay\n    )",
                "torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)",
            ),
            ("max_lr=args.lr", "max_lr=5e-3"),
        ],
    ),
]
