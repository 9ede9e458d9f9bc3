"""Faults of the diffusion model."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Fault

_Fault = partial(Fault, program="diffusion")

LOSS = "loss = p_losses(model, x0, alpha_bar)"
MSE = "return F.mse_loss(predicted, noise)"
FORWARD = "predicted = model(noisy, t)"
NOISY = "noisy = q_sample(x0, t, noise, alpha_bar)"
BACKWARD = "loss.backward()"
STEP = "optimizer.step()"
ADAM = "optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.99))"
ZERO = "        optimizer.zero_grad(set_to_none=True)\n"

FAULTS = [
    _Fault(
        name="diffusion: the prediction has lost its channel",
        edits=[(FORWARD, "predicted = model(noisy, t).squeeze(1)")],
        rules=("loss-broadcast",),
        lines=(MSE, LOSS, BACKWARD, "predicted = model(noisy, t).squeeze(1)"),
    ),
    _Fault(
        name="diffusion: the time is never added",
        edits=[("        h = h + self.time(F.silu(emb))[:, :, None, None]\n", "")],
        rules=("no-gradient-path",),
        lines=(BACKWARD, STEP),
        names=("*time*", "embed*"),
    ),
    _Fault(
        name="diffusion: the half of the way down is detached",
        edits=[
            (
                "two = self.down2(F.avg_pool2d(one, 2), emb)",
                "two = self.down2(F.avg_pool2d(one, 2), emb).detach()",
            )
        ],
        rules=("no-gradient-path",),
        lines=("two = self.down2(F.avg_pool2d(one, 2), emb).detach()", BACKWARD, STEP),
        names=("down2*",),
    ),
    _Fault(
        name="diffusion: betas up to 2, where 0.02 was meant",
        edits=[
            (
                "    return torch.cumprod(1 - betas, dim=0)\n",
                "    betas = torch.linspace(1e-4, 2.0, times)\n    return torch.cumprod(1 - betas, dim=0)\n",
            )
        ],
        rules=("non-finite",),
        lines=(
            "return kept.sqrt() * x0 + (1 - kept).sqrt() * noise",
            NOISY,
            FORWARD,
            MSE,
            LOSS,
            "betas = torch.linspace(1e-4, 2.0, times)",
        ),
    ),
    _Fault(
        name="diffusion: the model is pulled to its average, not the average to the model",
        edits=[("average.lerp_(current, 1 - self.decay)", "current.lerp_(average, self.decay)")],
        rules=("update-too-small", "not-learning", "plateau", "underfitting"),  # no rule fits; the nearest
        lines=("current.lerp_(average, self.decay)", "ema.update(model)", STEP, LOSS, MSE, BACKWARD),
        names=("*",),
    ),
    _Fault(
        name="diffusion: the optimizer has the weights of the average",
        edits=[("Adam(model.parameters()", "Adam(ema.model.parameters()")],
        rules=("never-updated", "optimizer-of-other-parameters"),
        lines=(STEP, ADAM.replace("(model.", "(ema.model.")),
        names=("*",),
    ),
    _Fault(
        name="diffusion: the warm-up is made and never stepped",
        edits=[("        scheduler.step()\n", "")],
        rules=("scheduler-never-stepped",),
        lines=(
            STEP,
            "scheduler = torch.optim.lr_scheduler.LambdaLR("
            "optimizer, lambda step: min(1.0, (step + 1) / warmup))",
        ),
        names=("*",),
    ),
    _Fault(
        name="diffusion: after the warm-up the rate falls to a fiftieth at once",
        edits=[("min(1.0, (step + 1) / warmup)", "(step + 1) / warmup if step < warmup else 0.02")],
        rules=("warm-up-cliff",),
        lines=(STEP, "scheduler.step()"),
        names=("*",),
    ),
    _Fault(
        name="diffusion: bfloat16 weights with a rate too small for them",
        edits=[
            ("    model = Denoiser()\n", "    model = Denoiser().bfloat16()\n"),
            ("make_blobs(1024)", "make_blobs(1024).bfloat16()"),
            ("alpha_bar = cosine_schedule(TIMES)", "alpha_bar = cosine_schedule(TIMES).bfloat16()"),
            (
                "self.mlp(torch.cat([angles.sin(), angles.cos()], dim=-1))",
                "self.mlp(torch.cat([angles.sin(), angles.cos()], dim=-1).bfloat16())",
            ),
            ("x = torch.randn(count, 1, SIZE, SIZE)", "x = torch.randn(count, 1, SIZE, SIZE).bfloat16()"),
            ("torch.tensor(1.0)", "torch.tensor(1.0).bfloat16()"),
            ("lr=2e-3", "lr=1e-5"),
        ],
        rules=("update-lost-to-rounding",),
        lines=(STEP,),
        names=("*",),
    ),
    _Fault(
        name="diffusion: the target is other noise than that in the picture",
        edits=[(MSE, "return F.mse_loss(predicted, torch.randn_like(x0))")],
        rules=("labels-do-not-fit", "not-learning"),
        lines=("return F.mse_loss(predicted, torch.randn_like(x0))", LOSS, BACKWARD),
        names=("*",),
    ),
    _Fault(
        name="diffusion: two pictures of the file are still 0 to 255",
        edits=[
            (
                "    alpha_bar = cosine_schedule(TIMES)\n",
                "    pictures[700:702] = 127.5 * (pictures[700:702] + 1)\n"
                "    alpha_bar = cosine_schedule(TIMES)\n",
            )
        ],
        rules=("loss-spike", "input-scale"),
        lines=(LOSS, MSE, FORWARD, BACKWARD, "one = self.down1(self.first(x), emb)"),
        names=("first*", "@", "denoiser"),
    ),
    _Fault(
        name="diffusion: a rate of 2 instead of 2e-3",
        edits=[("lr=2e-3", "lr=2.0")],
        rules=("update-too-large", "diverging", "exploding-gradients", "oscillating", "non-finite"),
        lines=(STEP, LOSS, MSE, BACKWARD),
        names=("*",),
    ),
    _Fault(
        name="diffusion: the error is made larger, not smaller",
        edits=[(MSE, "return -F.mse_loss(predicted, noise)")],
        rules=("loss-wrong-sign",),
        lines=("return -F.mse_loss(predicted, noise)", LOSS, BACKWARD),
    ),
    _Fault(
        name="diffusion: gradients are zeroed between the backward and the step",
        edits=[
            (ZERO + "        loss.backward()\n", "        loss.backward()\n"),
            ("        optimizer.step()\n", ZERO + "        optimizer.step()\n"),
        ],
        rules=("never-updated", "no-gradient-path"),
        lines=(STEP, BACKWARD, "optimizer.zero_grad(set_to_none=True)"),
        names=("*",),
    ),
]
