"""Sound changes of the segmentation."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Healthy

_Variant = partial(Healthy, program="segmentation")

MAKE = (
    "    optimizer = torch.optim.SGD(\n"
    '        model.parameters(), lr=CFG["lr"], momentum=CFG["momentum"], '
    'weight_decay=CFG["decay"], nesterov=True\n    )\n'
)
SCHEDULE = (
    "    scheduler = torch.optim.lr_scheduler.LambdaLR(\n"
    '        optimizer, lambda it: max(0.0, 1 - it / updates) ** CFG["power"]\n    )\n'
)
CAST = '        with torch.autocast("cpu", dtype=torch.bfloat16):\n            logits = model(images)\n'

VARIANTS = [
    _Variant(
        name="segmentation: Adam in float32, a step for each batch, no schedule",
        edits=[
            (MAKE, "    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)\n"),
            (SCHEDULE, "    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)\n"),
            (CAST, "        logits = model(images)\n"),
            ('"accumulate": 2', '"accumulate": 1'),
        ],
    ),
    _Variant(
        name="segmentation: rare classes weigh more, and the dice leaves the ground out",
        edits=[
            (
                "F.cross_entropy(logits, masks, ",
                "F.cross_entropy(logits, masks, torch.tensor([0.3, 1.0, 1.0]), ",
            ),
            ("/ (union + eps)).mean()", "/ (union + eps))[1:].mean()"),
        ],
    ),
    _Variant(
        name="segmentation: two sigmoids with a binary loss instead of three classes",
        edits=[
            (
                "    return ce + 0.5 * dice_loss(logits, masks)\n",
                '    valid = (masks != CFG["ignore"]).unsqueeze(1).expand(-1, 2, -1, -1)\n'
                "    wanted = torch.stack([masks == 1, masks == 2], dim=1).float()\n"
                "    return F.binary_cross_entropy_with_logits(logits[:, 1:], wanted, "
                "weight=valid.float())\n",
            ),
            ('    ce = F.cross_entropy(logits, masks, ignore_index=CFG["ignore"])\n', ""),
        ],
    ),
    _Variant(
        name="segmentation: a focal loss, summed over the pixels and divided by their number",
        edits=[
            (
                '    ce = F.cross_entropy(logits, masks, ignore_index=CFG["ignore"])\n'
                "    return ce + 0.5 * dice_loss(logits, masks)\n",
                '    ce = F.cross_entropy(logits, masks, ignore_index=CFG["ignore"], reduction="none")\n'
                "    focal = (1 - torch.exp(-ce)) ** 2 * ce\n"
                '    return focal.sum() / (masks != CFG["ignore"]).sum()\n',
            ),
        ],
    ),
    _Variant(
        name="segmentation: the first block is frozen for the first 40 steps",
        edits=[
            (
                "    for i, (images, masks) in enumerate(loader):\n",
                "    for i, (images, masks) in enumerate(loader):\n"
                "        model.enc1.requires_grad_(len(log) >= 40)\n",
            )
        ],
    ),
]
