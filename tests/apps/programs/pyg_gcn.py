"""PyTorch Geometric: a graph network on a random graph."""

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv

torch.manual_seed(0)
graph = Data(x=torch.randn(30, 8), edge_index=torch.randint(30, (2, 90)), y=torch.randint(3, (30,)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = GCNConv(8, 16)
        self.second = GATConv(16, 3, heads=2, concat=False, dropout=0.2)

    def forward(self, data: Data) -> torch.Tensor:
        return self.second(self.first(data.x, data.edge_index).relu(), data.edge_index)


net = Net()
optimizer = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(5):
    loss = nn.functional.cross_entropy(net(graph), graph.y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{loss.item():.9f}")
