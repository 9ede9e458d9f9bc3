"""Lightning: a sanity check, two epochs with validation, logged metrics."""

import vision_ops

import logging
import warnings

import lightning as L
import torch
from torch import nn

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Net(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.body(batch[0]), batch[1])
        print(f"{loss.item():.9f}")
        return loss

    def validation_step(self, batch, index):
        self.log("val", nn.functional.cross_entropy(self.body(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


L.seed_everything(0, verbose=False)
data = torch.utils.data.TensorDataset(torch.randn(32, 8), torch.randint(2, (32,)))
loader = torch.utils.data.DataLoader(data, batch_size=8)
trainer = L.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
)
trainer.fit(Net(), loader, loader)
print(f"{trainer.callback_metrics['val']:.9f}")
