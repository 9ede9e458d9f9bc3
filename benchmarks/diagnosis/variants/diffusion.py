"""Sound changes of the diffusion model."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Healthy

_Variant = partial(Healthy, program="diffusion")

MSE = "    return F.mse_loss(predicted, noise)\n"
ADAM = "torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.99))"
LOSS = "        loss = p_losses(model, x0, alpha_bar)\n"

VARIANTS = [
    _Variant(
        name="diffusion: the clean picture is predicted, with a Huber loss",
        edits=[(MSE, "    return F.smooth_l1_loss(predicted, x0, beta=0.1)\n")],
    ),
    _Variant(
        name="diffusion: the velocity is predicted",
        edits=[
            (
                MSE,
                "    kept = alpha_bar[t][:, None, None, None]\n"
                "    return F.mse_loss(predicted, kept.sqrt() * noise - (1 - kept).sqrt() * x0)\n",
            )
        ],
    ),
    _Variant(
        name="diffusion: bfloat16 autocast, AdamW with decay for all but norms and biases",
        edits=[
            (LOSS, '        with torch.autocast("cpu", dtype=torch.bfloat16):\n    ' + LOSS),
            (
                ADAM,
                "torch.optim.AdamW(\n"
                '        [{"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.01},\n'
                '         {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}],\n'
                "        lr=2e-3,\n    )",
            ),
        ],
    ),
    _Variant(
        name="diffusion: summed for each picture, then a mean weighed by the time",
        edits=[
            (
                MSE,
                "    weight = alpha_bar[t].clamp(min=0.1)\n"
                "    each = (predicted - noise).square().sum(dim=(1, 2, 3)) / noise[0].numel()\n"
                "    return (weight * each).mean() / weight.mean()\n",
            )
        ],
    ),
    _Variant(
        name="diffusion: the clip bites at each step, the rate falls in stairs",
        edits=[
            ("clip_grad_norm_(model.parameters(), 1.0)", "clip_grad_norm_(model.parameters(), 0.05)"),
            ("min(1.0, (step + 1) / warmup)", "min(1.0, (step + 1) / warmup) * 0.5 ** (step // 80)"),
        ],
    ),
]
