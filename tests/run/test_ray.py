"""The Ray engine, on a Ray that is really started, once for all tests here."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import fedadmm as fa
from fedadmm.core.local_work import LocalWork
from fedadmm.run.checkpoint import Checkpoints
from fedadmm.run.engines import ENGINES, ray_engine
from fedadmm.run.engines.ray_engine import Ray, pack_job
from fedadmm.run.plan import RoundReport
from fedadmm.run.simulation import make_job
from fedadmm.run.stores import DiskStore, MemoryStore
from support import minimal
from support.faulty import Broken, Deadly, federation_with
from support.models import small_federation
from support.resumable import fingerprints, problem, run, stopping_after, untimed

ray = pytest.importorskip("ray", reason="Ray is not installed")

# Ray hands open /dev/null files and its own processes to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]
PATIENCE = 120.0
ENGINE = Ray(actors=1, timeout=PATIENCE)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        stop = ray_engine.connect(None)
        yield
        stop()
        gc.collect()


def assert_close(one: fa.Result, other: fa.Result) -> None:
    """Equal to 1e-9 in everything but the clock; sums are formed in another order."""
    for mine, theirs in zip(untimed(one.history), untimed(other.history), strict=True):
        assert mine.keys() == theirs.keys()
        for group in theirs.keys() - {"round"}:
            assert mine[group].keys() == theirs[group].keys()
            for name, value in theirs[group].items():
                near = value if isinstance(value, str) else pytest.approx(value, rel=1e-9, abs=1e-9)
                assert mine[group][name] == near, name
    assert torch.allclose(one.params, other.params, rtol=0, atol=1e-9)
    assert sorted(one.clients) == sorted(other.clients)
    for client, state in other.clients.items():
        for mine, theirs in zip(one.clients[client], state, strict=True):
            assert torch.allclose(mine, theirs, rtol=0, atol=1e-9)


def test_the_name_is_registered() -> None:
    assert ENGINES["ray"] is Ray


@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param(fa.FedAvg(), id="fedavg", marks=pytest.mark.release),
        pytest.param(fa.FedADMM(rho=0.5, members="seen"), id="fedadmm"),
        pytest.param(fa.FedDR(eta=1.0, init="prox"), id="feddr", marks=pytest.mark.release),
    ],
)
def test_ray_equals_sequential(algorithm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With weights, several sums an actor, and no record that travels to the driver."""
    clients, initial = problem().clients, problem().initial
    weighted = fa.Problem(clients, weights=[1.0, 2, 3, 4, 5, 6, 7, 8], initial=initial)
    options: Any = {"algorithm": algorithm, "problem": weighted}
    read: list[int] = []
    get = DiskStore.get

    def noting(store: DiskStore, client: int) -> Any:
        read.append(client)
        return get(store, client)

    monkeypatch.setattr(DiskStore, "get", noting)
    result = run(5, engine=Ray(actors=2, cohort=1, timeout=PATIENCE), **options)
    assert read == []
    assert_close(result, run(5, **options))


def test_what_leaves_a_client_is_the_same() -> None:
    """Noised steps at the actors, and stages whose rest stays with its client."""
    options: Any = {
        "algorithm": fa.AlignedADMM(rho=0.5),
        "solver": fa.DPSGD(0.1, clip=0.5, multiplier=1.0, batch_size=4, delta=0.01),
        "upload": [fa.AdaptiveClip(0.1), fa.TopK(3), fa.Quantise(4)],
    }
    assert_close(run(5, engine=ENGINE, **options), run(5, **options))


@pytest.mark.release
def test_models_with_buffers_equal_sequential() -> None:
    def options() -> dict[str, Any]:
        federation = small_federation(torch.nn.BatchNorm1d(5).double(), buffers="keep-local")
        return {"problem": federation, "evaluate": fa.Evaluation(target="local")}

    assert_close(run(3, engine=ENGINE, **options()), run(3, **options()))


@pytest.mark.release
def test_lazy_clients_and_silent_rounds() -> None:
    clients = problem().clients
    built = fa.LazyClients(len(clients), lambda index: clients[index])
    options: Any = {
        "algorithm": fa.FedPD(eta=1.0, skip_probability=0.5),
        "sampler": fa.FullParticipation(),
    }
    lazy = fa.Problem(built, initial=problem().initial)
    assert_close(run(4, problem=lazy, engine=ENGINE, **options), run(4, **options))


def test_an_actor_holds_the_rows_of_its_own_clients_only() -> None:
    rows = torch.arange(8 * 1000.0, dtype=torch.float64).reshape(8, 100, 10)
    clients = [fa.LeastSquares(rows[i], torch.zeros(100, dtype=torch.float64)) for i in range(8)]
    federation = fa.Problem(clients, initial=torch.zeros(10, dtype=torch.float64))
    job = make_job(fa.FedAvg(), federation, LocalWork(fa.SGD(lr=0.1)), 0, federation.start(0))
    packed = pack_job(job, 1, 4)
    assert len(packed) < 2 * (1000 + 100) * 8 + 8000, "two clients and what surrounds them"
    loaded = ray.cloudpickle.loads(packed).problem.clients
    assert torch.equal(loaded[5].features, rows[5])
    with pytest.raises(KeyError):
        loaded[0]


@dataclass(frozen=True)
class Watched(Ray):
    """Keeps hold of the engine that it starts."""

    engines: list[Any] = field(default_factory=list)

    def start(self, job: Any, store: Any) -> Any:
        self.engines.append(super().start(job, store))
        return self.engines[-1]


def test_lost_actors_are_replaced_and_their_clients_recovered(tmp_path: Path) -> None:
    """One dies in the middle of a client, another between two rounds."""
    engine = Watched(actors=2, cohort=2, timeout=PATIENCE)

    def kill(report: RoundReport) -> None:
        if report.record["round"] == 2:
            (tmp_path / "kill-now").touch()
        if report.record["round"] == 3:
            ray.kill(engine.engines[0]._actors[0])

    options: Any = {
        "problem": federation_with(5, Deadly, folder=tmp_path),
        "sampler": fa.FullParticipation(),
        "evaluate": False,
    }
    reference = run(5, **options)
    store = DiskStore(tmp_path / "clients")
    result = run(5, engine=engine, store=store, callbacks=[kill], **options)
    assert not (tmp_path / "kill-now").exists(), "the actor was never killed"
    assert_close(result, reference)


@pytest.mark.release
def test_an_actor_that_is_lost_again_and_again_ends_the_run(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"kill-{number}").touch()
    federation = federation_with(2, Deadly, folder=tmp_path)
    options: Any = {"sampler": fa.FullParticipation(), "evaluate": False}
    with pytest.raises(fa.EngineError, match="actor 0 was lost 3 times in round 1"):
        run(2, problem=federation, engine=ENGINE, **options)


def test_a_client_that_raises_is_named() -> None:
    options: Any = {"sampler": fa.FullParticipation(), "evaluate": False}
    with pytest.raises(fa.EngineError, match="client 3 failed in round 1: ValueError: no such row"):
        run(2, problem=federation_with(3, Broken), engine=ENGINE, **options)


@pytest.mark.release
def test_a_run_on_ray_is_resumed_from_its_own_files(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    options: Any = {"engine": ENGINE, "callbacks": [stopping_after(3)]}
    with pytest.raises(KeyboardInterrupt):
        run(6, checkpoints=Checkpoints(checkpoint, 2), **options)
    checkpoints = Checkpoints(checkpoint)
    assert checkpoints.latest_round() == 3
    result = run(6, checkpoints=checkpoints, engine=ENGINE, resume=True)
    reference = run(6, engine=ENGINE)
    assert untimed(result.history) == untimed(reference.history)[3:]
    assert fingerprints(result) == fingerprints(reference)
    assert not list(checkpoint.rglob("*.marker"))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(fa.PairingError, match="the store is a MemoryStore; use DiskStore"):
        run(2, engine=ENGINE, store=MemoryStore())
    with pytest.raises(fa.ParameterError, match="actors is 0"):
        Ray(actors=0)
    with pytest.raises(fa.ParameterError, match=r"timeout is 0\.0"):
        Ray(timeout=0.0)


def test_an_answer_that_does_not_come_is_not_waited_for_for_ever() -> None:
    with pytest.raises(fa.EngineError, match="actor 0 did not answer within 1e-06 seconds"):
        run(2, engine=Ray(actors=1, timeout=1e-6))


@pytest.mark.release
def test_parts_that_have_only_the_declared_members_run_on_actors() -> None:
    result = minimal.run(ENGINE)
    path = [float(x) for x in result.trajectory]
    assert path == pytest.approx(minimal.expected(4), abs=1e-12)
