"""A LightningModule as it stands: `training_step` is the loss, `validation_step` the metrics."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import fedadmm as fa
from fedadmm import data


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        self.log("test_accuracy", (self.net(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self):  # not used here: the solver of the run makes the steps
        return torch.optim.Adam(self.parameters())


rows = data.digits()
train = TensorDataset(rows.train.prepared().inputs, rows.train.targets)
test = TensorDataset(rows.test.prepared().inputs, rows.test.targets)
order = rows.train.targets.argsort()  # every client has two digits or three
torch.manual_seed(0)
model = Digits()
clients = [
    fa.BatchObjective(
        model,
        fa.adapters.lightning_loss,
        DataLoader(Subset(train, part.tolist()), batch_size=32, shuffle=True),
    )
    for part in order.chunk(5)
]
problem = fa.Problem(
    clients,
    test=fa.BatchMetrics(model, fa.adapters.lightning_metrics, DataLoader(test, batch_size=200)),
    initial=clients[0].flat.vector.clone(),
)
solver = fa.SGD(lr=0.1, batch_size=1)  # one batch a step
result = fa.simulate(fa.FedADMM(rho=0.3), problem, 20, solver=solver, stop=fa.Epochs(2))
print(f"accuracy {result.history[-1]['metrics']['test_accuracy']:.1%}")
