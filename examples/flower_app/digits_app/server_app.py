"""What the server does: `strategy = admm` is new, in place of `strategy = FedAvg()`."""

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp

from digits_app.task import Net, admm

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = admm
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=context.run_config["num-server-rounds"],
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
    )
    print(result)
