"""skorch: a network as an estimator of scikit-learn, with a validation split and a pickle of it."""

import pickle

import numpy as np
import torch
from skorch import NeuralNetClassifier
from torch import nn


class Net(nn.Module):
    def __init__(self, width: int = 10) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        return self.body(X)


torch.manual_seed(0)
rng = np.random.default_rng(0)
X, y = rng.normal(size=(40, 5)).astype("float32"), rng.integers(2, size=40)
net = NeuralNetClassifier(Net, criterion=nn.CrossEntropyLoss, max_epochs=2, lr=0.1, batch_size=10, verbose=0)
net.fit(X, y)
print(f"{net.history[-1]['train_loss']:.9f} {net.history[-1]['valid_loss']:.9f}")
print(pickle.loads(pickle.dumps(net)).predict(X[:5]).tolist())
