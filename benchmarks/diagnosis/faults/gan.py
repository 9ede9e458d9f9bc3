"""Faults of the two networks that play against each other."""

from __future__ import annotations

from functools import partial

from benchmarks.diagnosis.cases import Fault

_Fault = partial(Fault, program="gan")

REAL = "errD_real = criterion(output, label)"
FAKE = "errD_fake = criterion(output, label)"
FOOLED = "errG = criterion(output, label)"
LOSSES = (REAL, FAKE, FOOLED)
BACKWARDS = ("errD_real.backward()", "errD_fake.backward()", "errG.backward()")
D_STEP, G_STEP = "optimizerD.step()", "optimizerG.step()"
D_MAKE = "optimizerD = optim.Adam(netD.parameters(), lr=1e-3, betas=(0.5, 0.999))"
G_MAKE = "optimizerG = optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))"
JUDGE = "return self.main(img).view(-1)"
LOOP = "for (real,) in dataloader:"
D = ("netD*", "Discriminator*", "discriminator*", "main*")
G = ("netG*", "Generator*", "generator*", "main*")

FAULTS = [
    _Fault(
        name="gan: the discriminator ends in a sigmoid",
        edits=[(JUDGE, "return torch.sigmoid(self.main(img)).view(-1)")],
        rules=("loss-input-is-probability",),
        lines=(*LOSSES, *BACKWARDS, "return torch.sigmoid(self.main(img)).view(-1)"),
    ),
    _Fault(
        name="gan: gradients of the discriminator are never zeroed",
        edits=[("            netD.zero_grad()\n", "")],
        rules=("stale-gradients",),
        lines=(D_STEP, *BACKWARDS),
        names=D,
    ),
    _Fault(
        name="gan: the loss of the discriminator also reaches the generator's gradients",
        edits=[
            (
                "            netD.zero_grad()\n",
                "            netD.zero_grad()\n            netG.zero_grad()\n",
            ),
            ("netD(fake.detach())", "netD(fake)"),
            ("errD_fake.backward()", "errD_fake.backward(retain_graph=True)"),
            (
                "            netG.zero_grad()\n            label.fill_(real_label)\n",
                "            label.fill_(real_label)\n",
            ),
        ],
        rules=("stale-gradients",),
        lines=(G_STEP, "errD_fake.backward(retain_graph=True)", "errG.backward()"),
        names=G,
    ),
    _Fault(
        name="gan: the optimizer of the discriminator steps twice, that of the generator never",
        edits=[("            optimizerG.step()\n", "            optimizerD.step()  # G\n")],
        rules=("never-updated",),
        lines=(D_STEP, "optimizerD.step()  # G", "errG.backward()", G_MAKE),
        names=G,
    ),
    _Fault(
        name="gan: a new generator is made after its optimizer",
        edits=[
            (
                "    G_losses, D_losses, gaps",
                "    netG = Generator()\n    netG.apply(weights_init)\n    G_losses, D_losses, gaps",
            )
        ],
        rules=("optimizer-of-other-parameters", "never-updated"),
        lines=(G_STEP, G_MAKE, "netG = Generator()"),
        names=G,
    ),
    _Fault(
        name="gan: the generator is judged by detached pictures",
        edits=[
            (
                "            output = netD(fake)\n            errG",
                "            fake = fake.detach()\n            output = netD(fake)\n            errG",
            )
        ],
        rules=("no-gradient-path",),
        lines=("fake = fake.detach()", "errG.backward()", FOOLED, G_STEP, "fake = netG(noise)"),
        names=G,
    ),
    _Fault(
        name="gan: the label of the fakes is never set, so that all are real",
        edits=[("            label.fill_(fake_label)\n", "")],
        rules=("constant-labels",),
        lines=(*LOSSES, *BACKWARDS, "label = torch.full((real.size(0),), real_label)"),
    ),
    _Fault(
        name="gan: the generator is asked to be seen through",
        edits=[("            label.fill_(real_label)\n", "")],
        rules=("loss-wrong-sign", "vanishing-gradients", "not-learning"),  # no rule fits; the nearest names
        lines=(*LOSSES, *BACKWARDS, G_STEP),
        names=G,
    ),
    _Fault(
        name="gan: real pictures of 0 to 255",
        edits=[("    images = (images / 255 - 0.5) / 0.5\n", "")],
        rules=("input-scale",),
        lines=("output = netD(real)", JUDGE),
        names=(*D, "discriminator", "netD"),
    ),
    _Fault(
        name="gan: all convolutions begin with one number",
        edits=[("nn.init.normal_(m.weight.data, 0.0, 0.05)", "nn.init.constant_(m.weight.data, 0.05)")],
        rules=("units-alike",),
        lines=("nn.init.constant_(m.weight.data, 0.05)",),
        names=(*D, *G),
    ),
    _Fault(
        name="gan: convolutions begin forty times too wide",
        edits=[("nn.init.normal_(m.weight.data, 0.0, 0.05)", "nn.init.normal_(m.weight.data, 0.0, 2.0)")],
        rules=("saturated-units", "init-scale", "bad-initial-loss"),
        lines=("nn.init.normal_(m.weight.data, 0.0, 2.0)", "return self.main(z)", JUDGE, *LOSSES),
        names=(*D, *G),
    ),
    _Fault(
        name="gan: a rate far too large for the generator",
        edits=[("netG.parameters(), lr=2e-3", "netG.parameters(), lr=0.8")],
        rules=(
            "update-too-large",
            "saturated-units",
            "diverging",
            "oscillating",
            "dead-units",
            "not-learning",
        ),
        lines=(G_STEP, FOOLED, "return self.main(z)"),
        names=G,
    ),
    _Fault(
        name="gan: the losses are kept with their graphs",
        edits=[("D_losses.append(errD.item())", "D_losses.append(errD)")],
        rules=("graph-leak",),
        lines=("D_losses.append(errD)", "errD = errD_real + errD_fake", REAL, FAKE),
    ),
    _Fault(
        name="gan: one batch for a quick test is left in",
        edits=[(LOOP, "for real in [images[:batch_size]]:")],
        rules=("repeated-samples",),
        lines=("for real in [images[:batch_size]]:", "output = netD(real)", REAL),
        names=(*D, "netD", "discriminator"),
    ),
    _Fault(
        name="gan: the generator stays in evaluation mode after the first pictures are drawn",
        edits=[("                netG.train()\n", "")],
        rules=("trained-in-eval-mode",),
        lines=("netG.eval()", "fake = netG(noise)", "errG.backward()", G_STEP),
        names=(*G, "netG", "generator"),
    ),
]
