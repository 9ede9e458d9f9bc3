"""A planted cost: the data are decoded in the process that trains, and the model waits for them."""

import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset[Tensor]):
    """Pictures that take a while to decode."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(0.01)  # the cost: decoding, one by one
        return torch.full((16,), index / 64)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in DataLoader(Pictures(), batch_size=8):
    loss = F.mse_loss(model(x), x.mean(dim=-1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
