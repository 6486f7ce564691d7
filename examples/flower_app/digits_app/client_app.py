"""What a node does: train and evaluate as for FedAvg; the mod in `ClientApp` is new."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from digits_app.task import Net, admm, load_data

app = ClientApp(mods=[admm.mod])


def received(message):
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model


@app.train()
def train(message, context):
    model = received(message)
    loader, _ = load_data(context.node_config["partition-id"])
    optimizer = torch.optim.SGD(model.parameters(), lr=message.content["config"]["lr"])
    for _ in range(context.run_config["local-epochs"]):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
    metrics = {"train_loss": loss.item(), "num-examples": len(loader.dataset)}
    records = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(records), reply_to=message)


@app.evaluate()
def evaluate(message, context):
    model = received(message)
    _, loader = load_data(context.node_config["partition-id"])
    with torch.no_grad():
        right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in loader)
    rows = len(loader.dataset)
    metrics = MetricRecord({"eval_acc": right / rows, "num-examples": rows})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
