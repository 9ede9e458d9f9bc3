"""Two threads in one model: `slow` waits in its part until `quick` has run."""

import threading

import torch
from torch import Tensor, nn

entered, go_on = threading.Event(), threading.Event()


class Wait(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        entered.set()
        go_on.wait(60)
        return x


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        self.right = nn.Sequential(nn.Linear(4, 8), Wait(), nn.Linear(8, 2))

    def forward(self, side: str, x: Tensor) -> Tensor:
        out: Tensor = self.get_submodule(side)(x)
        return out


torch.manual_seed(0)
model, x = Pair(), torch.randn(3, 4)
slow = threading.Thread(target=model, args=("right", x), name="slow")
quick = threading.Thread(target=model, args=("left", x), name="quick")
slow.start()
entered.wait(60)
quick.start(), quick.join()
go_on.set(), slow.join()
print("both have run")
