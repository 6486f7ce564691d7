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
from fedadmm.run.checkpoint import Checkpoints
from fedadmm.run.engines import ENGINES, ray_engine
from fedadmm.run.engines.ray_engine import Ray, packed, unpacked
from fedadmm.run.state import RoundReport
from fedadmm.run.stores import DiskStore, MemoryStore
from support import minimal
from support.engines import PROBLEMS
from support.faulty import Broken, Deadly, federation_with
from support.models import small_federation
from support.rejections import naming
from support.resumable import fingerprints, problem, run, stopping_after, untimed

ray = pytest.importorskip("ray", reason="Ray is not installed")

# Ray hands open /dev/null files and its own processes to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]
PATIENCE = 120.0
ENGINE = Ray(workers=1, timeout=PATIENCE)


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
    result = run(5, engine=Ray(workers=2, timeout=PATIENCE), **options)
    assert read == []
    assert_close(result, run(5, **options))


@pytest.mark.release
def test_what_leaves_a_client_is_the_same() -> None:
    """Noised steps at the actors, and stages whose rest stays with its client."""
    options: Any = {
        "algorithm": fa.AlignedADMM(rho=0.5),
        "solver": fa.DPSGD(0.1, clip=0.5, multiplier=1.0, batch_size=4, delta=0.01),
        "pipeline": [fa.AdaptiveClip(0.1), fa.TopK(3), fa.Quantise(4)],
    }
    assert_close(run(5, engine=ENGINE, **options), run(5, **options))


@pytest.mark.release
@pytest.mark.parametrize("personal", [fa.Ditto(0.3), fa.PersonalLayers(["2.*"])], ids=str)
def test_what_clients_keep_for_themselves_equals_sequential(personal: Any) -> None:
    options: Any = {"algorithm": fa.FedAvg(), "problem": PROBLEMS["tanh"](), "personal": personal}
    found, wanted = run(5, engine=ENGINE, **options), run(5, **options)
    assert_close(found, wanted)
    for client in wanted.clients:
        torch.testing.assert_close(
            found.personal(client), wanted.personal(client), rtol=0, atol=1e-9
        )


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


@dataclass(frozen=True)
class Watched(Ray):
    """Keeps hold of the engine that it starts."""

    engines: list[Any] = field(default_factory=list)
    divided: dict[str, Any] = field(default_factory=dict)

    def start(self, job: Any, store: Any) -> Any:
        self.engines.append(super().start(job, store))
        return self.engines[-1]

    def look(self, report: RoundReport) -> None:
        """Remember how clients would be divided while the actors run."""
        everybody = [[0, 2, 4, 6], range(8), [7], [1, 3, 5, 7]]
        for ids in everybody:
            batches = self.engines[-1]._batches(ids)
            self.divided[str(ids)] = [batch.clients for batch in batches]

    def loads(self, ids: Any, rows: Any) -> list[int]:
        """The sum of `rows` over each actor's clients."""
        found = [sum(map(rows, clients)) for clients in self.divided[str(ids)]]
        return found + [0] * (2 - len(found))


def test_only_the_samples_of_one_client_are_sent() -> None:
    """Rows are views of a larger tensor, and the module is one that all clients share."""
    rows = torch.arange(8 * 1000.0, dtype=torch.float64).reshape(8, 100, 10)
    clients = [fa.LeastSquares(rows[i], torch.zeros(100, dtype=torch.float64)) for i in range(8)]
    sent = packed(clients[5], None)
    assert len(sent) < (1000 + 100) * 8 + 2000, "one client and what surrounds it"
    assert torch.equal(unpacked(sent, None).features, rows[5])
    model = small_federation().clients[2]
    own = small_federation().clients[0].flat
    there = unpacked(packed(model, model.flat), own)
    assert there.flat is own
    assert torch.equal(there.inputs, model.inputs)


@pytest.mark.release
def test_clients_are_divided_by_their_numbers_of_samples() -> None:
    """Ids that are all even would all go to one of two actors; the rows are 10, 20 … 80."""
    draws = torch.Generator().manual_seed(0)
    clients = [
        fa.LeastSquares(torch.randn(10 * n, 3, generator=draws), torch.zeros(10 * n))
        for n in range(1, 9)
    ]
    engine, folder = Watched(workers=2, timeout=PATIENCE), DiskStore.temporary()
    federation = fa.Problem(clients, initial=torch.zeros(3))
    run(1, problem=federation, engine=engine, store=folder, callbacks=[engine.look])
    for ids in ([0, 2, 4, 6], range(8), [7], [1, 3, 5, 7]):
        loads = engine.loads(ids, lambda client: 10 * (client + 1))
        assert sum(loads) == sum(10 * (client + 1) for client in ids)
        assert max(loads) - min(loads) <= max(10 * (client + 1) for client in ids)
    assert engine.loads([0, 2, 4, 6], lambda client: 1) == [2, 2]
    assert engine.loads(range(8), lambda client: 10 * (client + 1)) == [180, 180]


def test_lost_actors_are_replaced_and_their_clients_recovered(tmp_path: Path) -> None:
    """One dies in the middle of a client, another between two rounds."""
    engine = Watched(workers=2, timeout=PATIENCE)

    def kill(report: RoundReport) -> None:
        if report.record["round"] == 2:
            (tmp_path / "kill-now").touch()
        if report.record["round"] == 3:
            ray.kill(engine.engines[0]._actors[0].handle)

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
    with pytest.raises(fa.errors.EngineError, match=naming("8 clients 3 round 1")):
        run(2, problem=federation, engine=ENGINE, **options)


def test_a_client_that_raises_is_named() -> None:
    options: Any = {"sampler": fa.FullParticipation(), "evaluate": False}
    with pytest.raises(
        fa.errors.EngineError, match=naming("client 3 round 1 ValueError no such row")
    ):
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


def test_what_does_not_fit_is_rejected() -> None:
    with pytest.raises(fa.errors.CompatibilityError, match=naming("store MemoryStore DiskStore")):
        run(2, engine=ENGINE, store=MemoryStore())
    with pytest.raises(fa.errors.ParameterError, match=naming("workers 0")):
        Ray(workers=0)
    with pytest.raises(fa.errors.ParameterError, match=naming("timeout 0.0")):
        Ray(timeout=0.0)


@pytest.mark.release
def test_an_answer_that_does_not_come_is_not_waited_for_for_ever() -> None:
    with pytest.raises(fa.errors.EngineError, match=naming("actor 0 1e-06 seconds")):
        run(2, engine=Ray(workers=1, timeout=1e-6))


@pytest.mark.release
def test_parts_that_have_only_the_declared_members_run_on_actors() -> None:
    result = minimal.run(ENGINE)
    path = [float(x) for x in result.trajectory]
    assert path == pytest.approx(minimal.expected(4), abs=1e-12)
