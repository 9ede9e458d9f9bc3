"""Pyro: a variational autoencoder by stochastic inference."""

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from torch import nn

pyro.set_rng_seed(0)
encoder, decoder = nn.Linear(8, 4), nn.Linear(2, 8)


def model(x):
    pyro.module("decoder", decoder)
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Normal(torch.zeros(len(x), 2), 1.0).to_event(1))
        pyro.sample("x", dist.Normal(decoder(z), 1.0).to_event(1), obs=x)


def guide(x):
    pyro.module("encoder", encoder)
    with pyro.plate("data", len(x)):
        mean, scale = encoder(x).chunk(2, -1)
        pyro.sample("z", dist.Normal(mean, scale.exp()).to_event(1))


svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), loss=Trace_ELBO())
for _ in range(5):
    print(f"{svi.step(torch.randn(10, 8)):.6f}")
