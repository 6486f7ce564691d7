"""Search a learning rate and a penalty with optuna, and stop trials that fall behind.

Needs the extra `tune`. A trial is one call of `simulate`; its callback reports every round to
optuna and raises `TrialPruned` when the trial is worse than the median of the others in that round.
"""

import optuna

import fedadmm as fa
from fedadmm.run.state import RoundReport

ROUNDS = 8
problem = fa.problems.load("digits", clients=10, partition="shards")


def objective(trial: optuna.Trial) -> float:
    """Return the test accuracy after the last round."""
    lr = trial.suggest_float("lr", 0.01, 1.0, log=True)
    rho = trial.suggest_float("rho", 0.01, 1.0, log=True)

    def report(done: RoundReport) -> None:
        trial.report(done.record["metrics"]["test_accuracy"], done.record["round"])
        if trial.should_prune():
            raise optuna.TrialPruned

    result = fa.simulate(
        fa.FedADMM(rho=rho),
        problem,
        ROUNDS,
        solver=fa.SGD(lr=lr, batch_size=20),
        stop=fa.Epochs(2),
        callbacks=[report],
    )
    return float(result.history[-1]["metrics"]["test_accuracy"])


optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(
    direction="maximize",
    sampler=optuna.samplers.TPESampler(seed=0),
    pruner=optuna.pruners.MedianPruner(n_startup_trials=4),
)
study.optimize(objective, n_trials=10)
pruned = [trial for trial in study.trials if trial.state == optuna.trial.TrialState.PRUNED]
print(f"{len(study.trials)} trials, {len(pruned)} stopped early")
print(f"best: lr {study.best_params['lr']:.3g}, rho {study.best_params['rho']:.3g}")
print(f"accuracy {study.best_value:.1%}")
