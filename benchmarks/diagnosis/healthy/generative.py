"""Generative models: adversarial, variational, quantised, diffusion, flows."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.diagnosis.healthy.data import batches, mlp, pictures
from benchmarks.diagnosis.healthy.registered import healthy


def _ring(count: int):
    angle = torch.rand(count) * 6.28
    return (
        torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(count, 2) + torch.tensor([2.0, -1.0])
    )


def _distance(real, made) -> float:
    """How far the moments of two sets of points are apart."""
    return float((real.mean(0) - made.mean(0)).norm() + (real.std(0) - made.std(0)).norm())


@healthy("GAN with two optimizers")
def gan(seed=0, steps=200):
    torch.manual_seed(seed)
    generator, discriminator = mlp(4, 32, 32, 2), mlp(2, 32, 32, 1, activation=nn.LeakyReLU)
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
    measures = []
    for _ in range(steps):
        real, noise = _ring(64), torch.randn(64, 4)
        fake = generator(noise)
        optimizer_d.zero_grad()
        loss_d = criterion(discriminator(real), ones) + criterion(discriminator(fake.detach()), zeros)
        loss_d.backward()
        optimizer_d.step()
        optimizer_g.zero_grad()
        loss_g = criterion(discriminator(fake), ones)
        loss_g.backward()
        optimizer_g.step()
        measures.append(_distance(real, fake.detach()))
    return measures, (generator, discriminator)


@healthy("Wasserstein GAN with clipped critic weights, RMSprop, five critic steps")
def wgan(seed=0, steps=80):
    torch.manual_seed(seed)
    generator, critic = mlp(4, 32, 2), mlp(2, 48, 48, 1)
    optimizer_g = torch.optim.RMSprop(generator.parameters(), lr=2e-3)
    optimizer_c = torch.optim.RMSprop(critic.parameters(), lr=2e-3)
    measures = []
    for _ in range(steps):
        for _ in range(5):
            real = _ring(64)
            fake = generator(torch.randn(64, 4)).detach()
            loss = critic(fake).mean() - critic(real).mean()
            optimizer_c.zero_grad()
            loss.backward()
            optimizer_c.step()
            with torch.no_grad():
                for parameter in critic.parameters():
                    parameter.clamp_(-0.1, 0.1)
        made = generator(torch.randn(64, 4))
        loss_g = -critic(made).mean()
        optimizer_g.zero_grad()
        loss_g.backward()
        optimizer_g.step()
        measures.append(_distance(real, made.detach()))
    return measures, (generator, critic)


@healthy("Wasserstein GAN with gradient penalty: a gradient of a gradient", falls_to=0.8)
def wgan_gp(seed=0, steps=180):
    torch.manual_seed(seed)
    generator, critic = mlp(4, 32, 2), mlp(2, 48, 48, 1, activation=nn.Softplus)
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=5e-3, betas=(0.0, 0.9))
    optimizer_c = torch.optim.Adam(critic.parameters(), lr=5e-3, betas=(0.0, 0.9))
    measures = []
    for step in range(steps * 3):
        real, fake = _ring(48), generator(torch.randn(48, 4))
        if step % 3 < 2:
            fake = fake.detach()
            between = (real + torch.rand(48, 1) * (fake - real)).requires_grad_()
            (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            loss = critic(fake).mean() - critic(real).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()
            optimizer_c.zero_grad()
            loss.backward()
            optimizer_c.step()
        else:
            optimizer_g.zero_grad()
            (-critic(fake).mean()).backward()
            optimizer_g.step()
            measures.append(_distance(real, fake.detach()))
    return measures, (generator, critic)


class _VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(144, 48, 8), mlp(4, 48, 144)

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, -1)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(code), mean, log_variance


@healthy("VAE whose loss is a sum over the batch, Adam", falls_to=0.96)
def vae(seed=0, steps=220):
    torch.manual_seed(seed)
    x = torch.sigmoid(2 * pictures()[0]).flatten(1)
    model = _VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for (rows,) in batches(x, steps=steps):
        out, mean, log_variance = model(rows)
        likelihood = F.binary_cross_entropy_with_logits(out, rows, reduction="sum")
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
        loss = likelihood + divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


class _Quantised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder, self.codes = mlp(12, 32, 4), mlp(4, 32, 12), nn.Embedding(64, 4)
        nn.init.normal_(self.codes.weight, std=0.5)

    def forward(self, x):
        z = self.encoder(x)
        nearest = self.codes(torch.cdist(z, self.codes.weight).argmin(1))
        loss = F.mse_loss(nearest, z.detach()) + 0.25 * F.mse_loss(z, nearest.detach())
        return self.decoder(z + (nearest - z).detach()), loss


@healthy("VQ-VAE: straight-through gradient, many codes never used")
def quantised(seed=0, steps=220):
    torch.manual_seed(seed)
    x = torch.randn(10, 12)[torch.randint(0, 10, (640,))] + 0.1 * torch.randn(640, 12)
    model = _Quantised()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for (rows,) in batches(x, steps=steps):
        out, commitment = model(rows)
        loss = F.mse_loss(out, rows) + commitment
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


class _Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time, self.net = nn.Embedding(50, 16), mlp(18, 64, 64, 2, activation=nn.SiLU)

    def forward(self, x, t):
        return self.net(torch.cat([x, self.time(t)], 1))


@healthy("diffusion: the noise is to be told, with an average of the weights", falls_to=0.8)
def diffusion(seed=0, steps=240):
    torch.manual_seed(seed)
    model = _Noise()
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    kept = torch.cumprod(1 - torch.linspace(1e-3, 0.12, 50), 0)
    losses = []
    for _ in range(steps):
        x, t, noise = (_ring(64) - torch.tensor([2.0, -1.0])), torch.randint(0, 50, (64,)), torch.randn(64, 2)
        share = kept[t].unsqueeze(1)
        loss = F.mse_loss(model(share.sqrt() * x + (1 - share).sqrt() * noise, t), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        losses.append(loss.item())
    return losses, (model, average)


class _Coupling(nn.Module):
    def __init__(self, flip: bool) -> None:
        super().__init__()
        self.net, self.flip = mlp(1, 32, 2, activation=nn.Tanh), flip
        nn.init.zeros_(self.net[2].weight)
        nn.init.zeros_(self.net[2].bias)

    def forward(self, x):
        one, two = (x[:, 1:], x[:, :1]) if self.flip else (x[:, :1], x[:, 1:])
        scale, shift = self.net(one).chunk(2, 1)
        two = two * scale.exp() + shift
        return torch.cat([two, one] if self.flip else [one, two], 1), scale.sum(1)


@healthy("normalising flow: couplings that start as the identity, the loss goes below zero")
def flow(seed=0, steps=240):
    torch.manual_seed(seed)
    layers = nn.ModuleList(_Coupling(bool(i % 2)) for i in range(6))
    optimizer = torch.optim.Adam(layers.parameters(), lr=5e-3)
    losses = []
    for _ in range(steps):
        z, volume = 0.3 * (_ring(96) - torch.tensor([2.0, -1.0])), 0.0
        for layer in layers:
            z, change = layer(z)
            volume = volume + change
        loss = (0.5 * z.square().sum(1) + math.log(2 * math.pi) - volume).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, layers


@healthy("denoising autoencoder trained as two halves by one optimizer over a chain", falls_to=0.8)
def denoising(seed=0, steps=180):
    torch.manual_seed(seed)
    x = (pictures()[0].flatten(1) / 1.5).clamp(-1, 1)
    encoder, decoder = mlp(144, 64, 24), mlp(24, 64, 144)
    optimizer = torch.optim.Adam(itertools.chain(encoder.parameters(), decoder.parameters()), lr=2e-3)
    losses = []
    for (rows,) in batches(x, steps=steps):
        out = torch.tanh(decoder(encoder(rows + 0.2 * torch.randn_like(rows))))
        loss = F.smooth_l1_loss(out, rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, (encoder, decoder)
