"""The model and the data, as in any Flower app, and the method: the last three lines are new."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedadmm import FedADMM, PerWork
from fedadmm.flower import DropIn, SitePolicy

NODES = 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, images):
        return self.layers(images)


def load_data(node):
    """A node's digits, 80 % of them to train on; every node has digits that others lack."""
    pixels, labels = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    rows = labels.argsort(stable=True).tensor_split(NODES)[node]
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(node))]
    own = TensorDataset(pixels[rows].float() / 16, labels[rows])
    cut = int(0.8 * len(own))
    train = torch.utils.data.Subset(own, range(cut))
    test = torch.utils.data.Subset(own, range(cut, len(own)))
    return DataLoader(train, batch_size=32, shuffle=True), DataLoader(test, batch_size=200)


method = FedADMM(rho=PerWork(0.25))  # a penalty that fits the train function's work
length = 0.1 * 24  # learning rate * optimiser steps of a round: 2 epochs of 12 batches
admm = DropIn(method, NODES, Net, length=length, policy=SitePolicy(evaluations=1000))
