"""ignite: a trainer and an evaluator with handlers."""

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, Loss
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Dropout(0.2), nn.Linear(12, 3))
data = torch.utils.data.TensorDataset(torch.randn(24, 6), torch.randint(3, (24,)))
loader = torch.utils.data.DataLoader(data, batch_size=6)
loss = nn.CrossEntropyLoss()
trainer = create_supervised_trainer(model, torch.optim.RMSprop(model.parameters(), 0.01), loss)
evaluator = create_supervised_evaluator(model, metrics={"accuracy": Accuracy(), "loss": Loss(loss)})


@trainer.on(Events.ITERATION_COMPLETED)
def tell(engine):
    print(f"{engine.state.output:.9f}")


@trainer.on(Events.EPOCH_COMPLETED)
def evaluate(engine):
    evaluator.run(loader)
    print(f"{evaluator.state.metrics['loss']:.9f}")


trainer.run(loader, max_epochs=2)
