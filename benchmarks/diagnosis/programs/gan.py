"""A small DCGAN in one long function: two networks, two optimizers, labels of ones and zeros."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

nz = 16
ngf = 24
ndf = 16
batch_size = 32


# custom weights initialization called on netG and netD
def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        nn.init.normal_(m.weight.data, 0.0, 0.05)
    elif classname.find("BatchNorm") != -1:
        nn.init.normal_(m.weight.data, 1.0, 0.02)
        nn.init.constant_(m.bias.data, 0)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            # input is Z, going into a convolution
            nn.ConvTranspose2d(nz, ngf * 2, 3, 1, 0, bias=False),
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(True),
            # state size. (ngf*2) x 3 x 3
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf),
            nn.ReLU(True),
            # state size. (ngf) x 6 x 6
            nn.ConvTranspose2d(ngf, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
            # state size. 1 x 12 x 12
        )

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, ndf, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ndf * 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 2, 1, 3, 1, 0, bias=False),
        )

    def forward(self, img):
        return self.main(img).view(-1)


def make_images(n):
    """Bright bars on dark ground; each has a place, a width and a direction"""
    imgs = torch.full((n, 1, 12, 12), 25.0)
    for i in range(n):
        start = int(torch.randint(1, 8, (1,)))
        width = int(torch.randint(2, 4, (1,)))
        imgs[i, 0, :, start : start + width] = 215.0
        if torch.rand(1) < 0.5:
            imgs[i] = imgs[i].transpose(1, 2).clone()
    return (imgs + 8 * torch.randn(imgs.shape)).clamp(0, 255)


def gap(real, fake):
    """how far the fakes are from the real ones: mean and spread of the pixels"""
    with torch.no_grad():
        mean = (real.mean(0) - fake.mean(0)).abs().mean()
        spread = (real.std(0) - fake.std(0)).abs().mean()
        return (mean + spread).item()


def main(seed: int = 0, steps: int = 250):
    torch.manual_seed(seed)
    images = make_images(960)
    images = (images / 255 - 0.5) / 0.5
    dataloader = DataLoader(TensorDataset(images), batch_size=batch_size, shuffle=True, drop_last=True)

    netG = Generator()
    netG.apply(weights_init)
    netD = Discriminator()
    netD.apply(weights_init)

    criterion = nn.BCEWithLogitsLoss()
    fixed_noise = torch.randn(64, nz, 1, 1)
    real_label = 0.9
    fake_label = 0.0

    optimizerD = optim.Adam(netD.parameters(), lr=1e-3, betas=(0.5, 0.999))
    optimizerG = optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))

    G_losses, D_losses, gaps, img_list = [], [], [], []
    while len(gaps) < steps:
        for (real,) in dataloader:
            # (1) Update D network: maximize log(D(x)) + log(1 - D(G(z)))
            netD.zero_grad()
            label = torch.full((real.size(0),), real_label)
            output = netD(real)
            errD_real = criterion(output, label)
            errD_real.backward()
            noise = torch.randn(real.size(0), nz, 1, 1)
            fake = netG(noise)
            label.fill_(fake_label)
            output = netD(fake.detach())
            errD_fake = criterion(output, label)
            errD_fake.backward()
            errD = errD_real + errD_fake
            optimizerD.step()

            # (2) Update G network: maximize log(D(G(z)))
            netG.zero_grad()
            label.fill_(real_label)
            output = netD(fake)
            errG = criterion(output, label)
            errG.backward()
            optimizerG.step()

            G_losses.append(errG.item())
            D_losses.append(errD.item())
            gaps.append(gap(real, fake))
            if len(gaps) % 50 == 0:
                print(f"[{len(gaps)}/{steps}] Loss_D: {errD.item():.3f} Loss_G: {errG.item():.3f}")
                netG.eval()
                with torch.no_grad():
                    img_list.append(netG(fixed_noise))
                netG.train()
            if len(gaps) >= steps:
                break
    return gaps, (netG, netD)
