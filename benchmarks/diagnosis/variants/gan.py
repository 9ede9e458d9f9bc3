"""Sound changes of the two networks that play against each other."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Healthy

_Variant = partial(Healthy, program="gan")

REAL = "            errD_real = criterion(output, label)\n"
FAKE = "            errD_fake = criterion(output, label)\n"
FOOLED = "            errG = criterion(output, label)\n"

VARIANTS = [
    _Variant(
        name="gan: the hinge loss, whose generator has a loss of either sign",
        edits=[
            (REAL, "            errD_real = torch.relu(1 - output).mean()\n"),
            (FAKE, "            errD_fake = torch.relu(1 + output).mean()\n"),
            (FOOLED, "            errG = -output.mean()\n"),
        ],
    ),
    _Variant(
        name="gan: least squares",
        edits=[("nn.BCEWithLogitsLoss()", "nn.MSELoss()")],
    ),
    _Variant(
        name="gan: a Wasserstein critic with clipped weights, RMSprop",
        edits=[
            (REAL, "            errD_real = -output.mean()\n"),
            (FAKE, "            errD_fake = output.mean()\n"),
            (FOOLED, "            errG = -output.mean()\n"),
            (
                "optim.Adam(netD.parameters(), lr=1e-3, betas=(0.5, 0.999))",
                "optim.RMSprop(netD.parameters(), lr=1e-3)",
            ),
            (
                "optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))",
                "optim.RMSprop(netG.parameters(), lr=1e-3)",
            ),
            (
                "            optimizerD.step()\n",
                "            optimizerD.step()\n"
                "            with torch.no_grad():\n"
                "                for p in netD.parameters():\n"
                "                    p.clamp_(-0.1, 0.1)\n",
            ),
        ],
    ),
    _Variant(
        name="gan: the discriminator has spectral norms and is frozen while the generator learns",
        edits=[
            (
                "nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False)",
                "nn.utils.spectral_norm(nn.Conv2d(ndf, ndf * 2, 4, 2, 1))",
            ),
            ("            nn.BatchNorm2d(ndf * 2),\n", ""),
            (
                "            netD.zero_grad()\n",
                "            netD.requires_grad_(True)\n            netD.zero_grad()\n",
            ),
            (
                "            netG.zero_grad()\n",
                "            netD.requires_grad_(False)\n            netG.zero_grad()\n",
            ),
        ],
    ),
    _Variant(
        name="gan: one backward for both losses of the discriminator, fakes drawn without a graph",
        edits=[
            ("            errD_real.backward()\n", ""),
            (
                "            errD_fake.backward()\n            errD = errD_real + errD_fake\n",
                "            errD = errD_real + errD_fake\n            errD.backward()\n",
            ),
            (
                "            fake = netG(noise)\n",
                "            with torch.no_grad():\n                fake = netG(noise)\n",
            ),
            (
                "            label.fill_(real_label)\n",
                "            label = torch.full((real.size(0),), real_label)\n"
                "            fake = netG(noise)\n",
            ),
            (
                "            label.fill_(fake_label)\n",
                "            label = torch.full((real.size(0),), fake_label)\n",
            ),
        ],
    ),
]
