"""Fine-tune a small adapter of a larger frozen model: only the adapter travels.

The larger model is trained on the digits 0 to 4 here, in place of one that you downloaded.
"""

import torch
from torch import nn

from fedadmm import SGD, Epochs, FedADMM, FlatModule, data, problems, simulate

rows = data.digits()
torch.manual_seed(0)
features = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256))
head = nn.Linear(256, 5)
known = rows.train.targets < 5
optimizer = torch.optim.Adam([*features.parameters(), *head.parameters()], lr=1e-3)
inputs = rows.train.prepared().inputs
for _ in range(60):
    optimizer.zero_grad()
    scores = head(features(inputs[known]))
    nn.functional.cross_entropy(scores, rows.train.targets[known]).backward()
    optimizer.step()


class Adapted(nn.Module):
    """features(x) + up(relu(down(features(x)))), then scores; the features stay as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.features = features.requires_grad_(False)
        self.adapter = nn.Sequential(nn.Linear(256, 8), nn.ReLU(), nn.Linear(8, 256))
        self.scores = nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the ten digits."""
        found = self.features(x)
        return self.scores(found + self.adapter(found))


model = Adapted()
problem = problems.from_data(
    rows.train, rows.test, model=model, clients=20, partition="dirichlet", dirichlet_alpha=0.3
)
result = simulate(
    FedADMM(rho=0.1),
    problem,
    rounds=20,
    solver=SGD(lr=0.1, batch_size=20),
    stop=Epochs(2),
)
total = sum(p.numel() for p in model.parameters())
print(f"{FlatModule(model).num_parameters:,} of {total:,} parameters travel")
print(f"accuracy {result.history[-1]['metrics']['test_accuracy']:.1%}")
