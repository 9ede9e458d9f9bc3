"""neuraloperator: a Fourier operator: complex weights and spectra."""

import torch
from neuralop.models import FNO
from torch import nn

torch.manual_seed(0)
model = FNO(n_modes=(4, 4), in_channels=1, out_channels=1, hidden_channels=8, n_layers=2)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(3):
    loss = nn.functional.mse_loss(model(torch.randn(2, 1, 8, 8)), torch.zeros(2, 1, 8, 8))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{loss.item():.6f}")
