"""Record short runs as digests, so that a refactoring can be shown to change no number.

    python tools/record_runs.py before.json          # before the change
    python tools/record_runs.py after.json           # after it
    python tools/record_runs.py --compare before.json after.json

Every method is run with every engine, resumed from a checkpoint, with every regularizer, sampler,
stopping rule, output and update-pipeline component.  A run leaves two digests: one of its vectors
(output model after each round, server state, client states) and one of its records without clocks.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fedadmm as fa
from fedadmm.core import trees

SIZES = (7, 23, 1, 12, 10, 31)
ROUNDS = 4
ENGINES = ("sequential", "vectorised", "workers", "virtual-time", "auto")


def methods() -> dict[str, Any]:
    """Every method with hyper-parameters that suit the small problems."""
    return {
        "fedsgd": fa.FedSGD(lr=0.1),
        "fedavg": fa.FedAvg(),
        "fedprox": fa.FedProx(rho=0.3),
        "fedavgm": fa.FedAvgM(nesterov=True),
        "fedadagrad": fa.FedAdagrad(),
        "fedadam": fa.FedAdam(),
        "fedyogi": fa.FedYogi(),
        "fednova": fa.FedNova(),
        "fedexp": fa.FedExP(),
        "fedcm": fa.FedCM(alpha=0.5),
        "fedmid": fa.FedMid(),
        "feddualavg": fa.FedDualAvg(),
        "scaffnew": fa.Scaffnew(p=0.3),
        "adabest": fa.AdaBest(mu=0.2),
        "scaffold-1": fa.Scaffold(option=1),
        "scaffold-2": fa.Scaffold(option=2),
        "feddyn": fa.FedDyn(eta=0.7),
        "feddyn-seen": fa.FedDyn(eta=0.7, members="seen"),
        "pfedme": fa.PFedMe(rho=0.5, step=0.7),
        "fedpd": fa.FedPD(eta=0.7, skip_probability=0.4),
        "fedpd-gradient": fa.FedPD(eta=0.7, dual="gradient"),
        "fedadmm": fa.FedADMM(rho=0.5),
        "fedadmm-default": fa.FedADMM(),
        "fedadmm-seen": fa.FedADMM(rho=0.5, members="seen"),
        "fedadmm-step": fa.FedADMM(rho=0.5, step=0.4),
        "fedadmm-gradient": fa.FedADMM(rho=0.5, dual="gradient"),
        "fedadmm-printed": fa.algorithms.FedADMMPrinted(
            rho=fa.schedules.Piecewise({0: 0.5, 2: 0.7})
        ),
        "fedadmm-released": fa.algorithms.FedADMMReleased(rho=0.5),
        "fedadmm-wang": fa.algorithms.FedADMMWangReleased(rho=0.5),
        "aligned-admm": fa.AlignedADMM(rho=0.5),
        "consensus-admm": fa.ConsensusADMM(rho=0.5),
        "aligned-default": fa.AlignedADMM(),
        "a-fedpd": fa.AFedPD(rho=0.5),
        "fedadmm-in": fa.FedADMMIn(beta=0.5),
        "fedadmm-in-released": fa.algorithms.FedADMMInReleased(beta=0.5),
        "fedadmm-insa": fa.FedADMMInSa(beta=0.5, mu=1.5),
        "fedadmm-insa-released": fa.algorithms.FedADMMInSaReleased(beta=0.5, mu=1.5),
        "feddr": fa.FedDR(eta=0.6, alpha=1.2, init="prox"),
        "feddr-start": fa.FedDR(eta=0.6),
        "feddr-ii": fa.FedDRII(eta=0.6),
        "fedsplit": fa.FedSplit(eta=0.6),
        "async-feddr": fa.AsyncFedDR(eta=0.6),
        "fedasync": fa.FedAsync(),
        "fedbuff": fa.FedBuff(size=2),
    }


def _rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _inputs(client: int, samples: int) -> torch.Tensor:
    return torch.randn(samples, 4, generator=_rng(client), dtype=torch.float64)


def _labels(client: int, samples: int, classes: int) -> torch.Tensor:
    return torch.randint(0, classes, (samples,), generator=_rng(100 + client))


def network(*layers: nn.Module, **options: Any) -> fa.Problem:
    """Clients of unequal size around one network with four inputs and three classes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        for layer in layers:
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
        flat = fa.FlatModule(nn.Sequential(*layers).double())
    clients = [
        fa.ModelObjective(flat, fa.losses.cross_entropy, _inputs(i, n), _labels(i, n, 3))
        for i, n in enumerate(SIZES)
    ]
    return fa.Problem(clients, initial=flat.vector.clone(), **options)


def logistic(**options: Any) -> fa.Problem:
    """Logistic regressions of unequal size."""
    clients = [
        fa.LogisticRegression(_inputs(i, n), _labels(i, n, 2), ridge=0.05)
        for i, n in enumerate(SIZES)
    ]
    return fa.Problem(clients, initial=torch.ones(4, dtype=torch.float64), **options)


def quadratic(**options: Any) -> fa.Problem:
    """Strongly convex quadratics."""
    clients = []
    for client, size in enumerate(SIZES):
        x = _inputs(client, size)
        clients.append(fa.Quadratic(x.T @ x / size + torch.eye(4).double(), x.sum(0)))
    return fa.Problem(clients, initial=torch.ones(4, dtype=torch.float64), **options)


def perceptron(**options: Any) -> fa.Problem:
    """A perceptron with hand-written passes."""
    return network(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3), **options)


PROBLEMS = {"perceptron": perceptron, "quadratic": quadratic, "logistic": logistic}


def runs() -> Iterator[tuple[str, Any, Any, dict[str, Any]]]:
    """Name, method, problem and options of every recorded run."""
    known = methods()
    for problem, make in PROBLEMS.items():
        for name, method in known.items():
            for engine in ENGINES if problem == "perceptron" else ENGINES[:2]:
                yield f"{problem}/{name}/{engine}", method, make, {"engine": engine}
    for name, method in known.items():
        yield f"resumed/{name}", method, logistic, {"resumed": True}
        yield f"l1/{name}", method, quadratic, {"regularizer": fa.L1(0.05)}
        for start in ("own", "current"):
            yield f"start-{start}/{name}", method, perceptron, {"start": start}
    tried = ("fedavg", "fedadmm", "aligned-admm", "feddyn", "scaffold-2", "feddr", "fedadmm-insa")
    for name in tried:
        method = known[name]
        for label, options in variants():
            yield f"{label}/{name}", method, perceptron, options
            if label.split("/")[0] in ("update", "output", "sampler"):
                yield f"{label}/resumed/{name}", method, perceptron, {**options, "resumed": True}


def variants() -> Iterator[tuple[str, dict[str, Any]]]:
    """Options in addition to the defaults."""
    noise = fa.GaussianNoise(multiplier=0.5, delta=1e-2)
    stages: dict[str, list[Any]] = {
        "clip": [fa.Clip(norm=0.1)],
        "adaptive-clip": [fa.AdaptiveClip(norm=0.1)],
        "top-k": [fa.TopK(keep=0.25)],
        "random-k": [fa.RandomK(keep=0.25)],
        "quantise": [fa.Quantise(bits=4)],
        "bfloat16": [fa.BFloat16()],
        "clip-top-k-quantise": [fa.Clip(norm=0.2), fa.TopK(keep=0.3), fa.Quantise()],
        "clip-noise": [fa.Clip(norm=0.1), noise],
        "adaptive-clip-noise": [fa.AdaptiveClip(norm=0.1), noise],
    }
    for name, upload in stages.items():
        yield f"update/{name}", {"pipeline": upload, "sampler": fa.BernoulliSampling(0.7)}
    yield "aggregate/median", {"aggregator": fa.Median()}
    yield "aggregate/trimmed", {"aggregator": fa.TrimmedMean(0.25)}
    yield "aggregate/masked", {"aggregator": fa.MaskedSum(bound=50.0, minimum=3)}
    for name, output in {
        "averaged": fa.outputs.Averaged(),
        "participants": fa.outputs.ParticipantsMean(),
        "random": fa.outputs.RandomIterate(),
    }.items():
        yield f"output/{name}", {"output": output}
    for name, sampler in {
        "full": fa.FullParticipation(),
        "bernoulli": fa.BernoulliSampling(0.6),
        "cyclic": fa.CyclicSampling(2),
        "weighted": fa.WeightedSampling([1.0, 2.0, 1.0, 3.0, 1.0, 1.0], size=3),
        "doubly": fa.DoublyUniformSampling(),
    }.items():
        yield f"sampler/{name}", {"sampler": sampler}
    for name, stop in {
        "steps": fa.Steps(3),
        "epochs": fa.Epochs(2),
        "relative": fa.stopping.RelativeAccuracy(0.5, max_epochs=5),
    }.items():
        yield f"stop/{name}", {"stop": stop}
    for name, solver in {
        "momentum": fa.SGD(lr=0.05, batch_size=5, momentum=0.9),
        "adam": fa.Adam(lr=0.01, batch_size=5),
        "gradient-descent": fa.GradientDescent(lr=0.1),
        "dpsgd": fa.DPSGD(lr=0.1, batch_size=5, clip=1.0, multiplier=1.0, delta=1e-3),
    }.items():
        yield f"solver/{name}", {"solver": solver}
    yield "personal/ditto", {"personal": fa.Ditto(0.1)}
    yield "target/patience", {"patience": 1, "evaluate": True}
    yield "diagnostics", {"callbacks": [fa.Diagnostics()], "evaluate": True}


def execute(method: Any, make: Any, options: dict[str, Any]) -> dict[str, str]:
    """Run once and return its digests, or the class of the error that rejects it."""
    settings: dict[str, Any] = {
        "sampler": fa.UniformSampling(4),
        "solver": fa.SGD(lr=0.1, batch_size=5),
        "stop": fa.UniformEpochs(3),
        "evaluate": False,
        "seed": 5,
        "keep_trajectory": True,
    }
    options = dict(options)
    resumed = options.pop("resumed", False)
    settings |= options
    try:
        problem = make()
        try:
            return _digests(method, problem, settings, resumed)
        except fa.errors.CompatibilityError:
            if "sampler" in options:
                raise
            return _digests(method, problem, settings | {"sampler": None}, resumed)
    except fa.FedADMMError as error:
        return {"rejected": type(error).__name__}


def _digests(method: Any, problem: Any, settings: dict[str, Any], resumed: bool) -> dict[str, str]:
    history: list[Any] = []
    trajectory: list[Any] = []
    if not resumed:
        result = fa.simulate(method, problem, ROUNDS, **settings)
        history, trajectory = result.history, result.trajectory
    else:
        with tempfile.TemporaryDirectory() as folder:
            for rounds in (ROUNDS // 2, ROUNDS):
                result = fa.simulate(
                    method,
                    problem,
                    rounds,
                    **settings,
                    checkpoints=fa.Checkpoints(Path(folder), 1),
                    resume=rounds == ROUNDS,
                )
                history += result.history
                trajectory += result.trajectory
    states = [result.clients[client] for client in sorted(result.clients)]
    vectors = [*trajectory, result.params, *trees.tensors(result.server), *trees.tensors(states)]
    records = [{key: value for key, value in one.items() if key != "clock"} for one in history]
    return {"vectors": _hash_tensors(vectors), "records": _hash_records(records)}


def _hash_tensors(tensors: Iterable[Any]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(str((tensor.dtype, tuple(tensor.shape))).encode())
        digest.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _hash_records(records: Any) -> str:
    return hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()[:16]


def compare(before: Path, after: Path) -> int:
    """Print every run that differs; the exit code is 1 if one does."""
    first, second = json.loads(before.read_text()), json.loads(after.read_text())
    common = sorted(first.keys() & second.keys())
    changed = [name for name in common if first[name] != second[name]]
    for name in changed:
        kinds = {*first[name], *second[name]}
        parts = [kind for kind in sorted(kinds) if first[name].get(kind) != second[name].get(kind)]
        print(f"{name}: {', '.join(parts)}")
    only = len(first) + len(second) - 2 * len(common)
    print(f"{len(common) - len(changed)} of {len(common)} runs are identical; {only} unmatched")
    return int(bool(changed))


def main() -> int:
    """Record all runs, or compare two recordings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--compare", action="store_true")
    options = parser.parse_args()
    if options.compare:
        return compare(*options.files)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = {}
    for name, method, make, settings in runs():
        found[name] = execute(method, make, settings)
    options.files[0].write_text(json.dumps(found, indent=1))
    rejected = sum("rejected" in one for one in found.values())
    print(f"{len(found)} runs, {rejected} of them rejected")
    return 0


if __name__ == "__main__":
    sys.exit(main())
