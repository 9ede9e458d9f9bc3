"""TorchRL: a value network in a TensorDict module, its loss, and a target that follows."""

import torch
from tensordict import TensorDict
from torch import nn
from torchrl.data import OneHot
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

torch.manual_seed(0)
actor = QValueActor(
    nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2)), in_keys=["observation"], spec=OneHot(2)
)
loss_module = DQNLoss(actor, action_space="one-hot", delay_value=True)
target = SoftUpdate(loss_module, eps=0.9)
optimizer = torch.optim.Adam(loss_module.parameters(), 1e-2)
for _ in range(3):
    following = {"observation": torch.randn(8, 4), "reward": torch.randn(8, 1)}
    following["done"] = following["terminated"] = torch.zeros(8, 1, dtype=torch.bool)
    action = nn.functional.one_hot(torch.randint(2, (8,)), 2)
    batch = TensorDict({"observation": torch.randn(8, 4), "action": action, "next": following}, [8])
    loss = loss_module(batch)["loss"]
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    target.step()
    print(f"{loss.item():.6f}")
