"""Checkpoints: what they hold, what they refuse, and how a run goes on from them."""

from __future__ import annotations

import hashlib
import pickle
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedadmm as fa
from fedadmm.core import codec, trees
from fedadmm.run.checkpoint import Checkpoints, MemoryCheckpoints
from fedadmm.run.engines.workers import Workers
from fedadmm.run.state import RoundReport
from fedadmm.run.stores import DiskStore, params_sha256
from fedadmm.run.stores.segments import existing, scan
from support.federations import federation as quadratics
from support.models import small_federation
from support.rejections import naming
from support.resumable import (
    CLIENTS,
    assert_continued,
    contents,
    interrupted,
    make_store,
    problem,
    run,
)

ALGORITHMS = {
    "fedsgd": fa.FedSGD(lr=0.5),
    "fedavg": fa.FedAvg(),
    "fedprox": fa.FedProx(rho=0.1),
    "scaffold": fa.Scaffold(),
    "fedavgm": fa.FedAvgM(nesterov=True),
    "fedadagrad": fa.FedAdagrad(),
    "fedadam": fa.FedAdam(),
    "fedyogi": fa.FedYogi(),
    "fednova": fa.FedNova(),
    "fedcm": fa.FedCM(),
    "fedmid": fa.FedMid(),
    "feddualavg": fa.FedDualAvg(),
    "scaffnew": fa.Scaffnew(),
    "adabest": fa.AdaBest(),
    "feddyn": fa.FedDyn(eta=1.0),
    "fedadmm": fa.FedADMM(rho=0.5, members="seen"),
    "aligned-admm": fa.AlignedADMM(rho=0.5),
    "consensus-admm": fa.ConsensusADMM(rho=0.5),
    "fedadmm-in": fa.FedADMMIn(beta=0.5),
    "fedadmm-insa": fa.FedADMMInSa(beta=0.5),
    "feddr": fa.FedDR(eta=1.0, init="prox"),
    "feddr-ii": fa.FedDRII(eta=1.0),
    "fedpd": fa.FedPD(eta=1.0, skip_probability=0.5),
    "fedsplit": fa.FedSplit(eta=1.0),
}
FULL = {"sampler": fa.FullParticipation()}


@pytest.mark.parametrize("kind", ["memory", "disk"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_resumes_bit_for_bit(name: str, kind: str, tmp_path: Path) -> None:
    algorithm = ALGORITHMS[name]
    options = {"algorithm": algorithm} | (FULL if algorithm.requirements.full_participation else {})
    resume = interrupted(tmp_path, 4, kind=kind, **options)
    assert_continued(resume(), run(8, **options), 4)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_crash_after_an_initial_round_does_not_repeat_it(kind: str, tmp_path: Path) -> None:
    """Whatever the interval of checkpoints: everybody has worked for it."""
    solved: list[int] = []

    class Counting(fa.SGD):
        def solve(self, *arguments: Any, **options: Any) -> Any:
            solved.append(arguments[-1].round_index)
            return super().solve(*arguments, **options)

    def crash(report: RoundReport) -> None:
        if report.record["round"] == 1:
            raise OSError

    options: dict[str, Any] = {
        "algorithm": fa.FedDR(eta=1.0, init="prox"),
        "engine": "sequential",
    }
    folder = tmp_path / "checkpoint"
    with pytest.raises(OSError):
        run(
            *(4,),
            **options,
            store=make_store(kind, tmp_path),
            checkpoints=Checkpoints(folder, 5),
            callbacks=[crash],
        )
    assert Checkpoints(folder).latest_round() == 0
    again = {"store": make_store(kind, tmp_path), "checkpoints": Checkpoints(folder, 5)}
    solver = Counting(lr=0.1, batch_size=4)
    result = run(4, **options, **again, solver=solver, resume=True)
    assert solved == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert_continued(result, run(4, **options), 0)


@pytest.mark.parametrize("policy", ["average", "keep-local"])
def test_buffers_of_the_model_are_saved_too(policy: str, tmp_path: Path) -> None:
    def options() -> dict[str, Any]:
        with torch.random.fork_rng(devices=[]):
            norm = nn.BatchNorm1d(5).double()
        federation = small_federation(norm, buffers=policy)
        where = "local" if policy == "keep-local" else "global"
        return {"problem": federation, "evaluate": fa.Evaluation(target=where)}

    resume = interrupted(tmp_path, 3, rounds=6, **options())
    assert_continued(resume(**options()), run(6, **options()), 3)


@pytest.mark.parametrize("kind", ["memory", "disk"])
@pytest.mark.parametrize("engine", ["auto", "vectorised", "workers"])
def test_every_engine_resumes_bit_for_bit(engine: str, kind: str, tmp_path: Path) -> None:
    options: Any = {"engine": Workers(1) if engine == "workers" else engine}
    resume = interrupted(tmp_path, 4, kind=kind, **options)
    assert_continued(resume(), run(8, **options), 4)


def test_only_new_rounds_reach_callbacks(tmp_path: Path) -> None:
    resume = interrupted(tmp_path, 5)
    seen: list[int] = []
    result = resume(callbacks=[lambda report: seen.append(report.record["round"])])
    assert seen == [record["round"] for record in result.history] == [6, 7, 8]


def test_without_a_checkpoint_a_resumed_run_starts_from_round_0(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "none")
    assert checkpoints.latest_round() is None
    assert_continued(run(4, checkpoints=checkpoints, resume=True), run(4), 0)
    leftover = DiskStore(tmp_path / "clients")
    run(2, store=leftover)
    store = DiskStore(tmp_path / "clients")
    result = run(4, store=store, checkpoints=Checkpoints(tmp_path / "empty"), resume=True)
    assert_continued(result, run(4), 0)


def test_a_fresh_run_removes_the_checkpoints_of_an_earlier_one(tmp_path: Path) -> None:
    run(6, checkpoints=Checkpoints(tmp_path))
    run(2, checkpoints=Checkpoints(tmp_path))
    assert Checkpoints(tmp_path).latest_round() == 2


@pytest.mark.parametrize("every", [1, 3])
def test_ctrl_c_saves_the_last_complete_round(every: int, tmp_path: Path) -> None:
    interrupted(tmp_path, 4, every=every)
    assert Checkpoints(tmp_path / "checkpoint").latest_round() == 4


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_ctrl_c_in_the_middle_of_a_round_loses_nothing(kind: str, tmp_path: Path) -> None:
    federation = problem()
    calls = 0

    class Impatient(fa.SGD):
        def solve(self, *arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 3 * 5 + 2:  # three clients a round: one of round 6 has committed
                signal.raise_signal(signal.SIGINT)
            return super().solve(*arguments, **options)

    solver = Impatient(lr=0.1, batch_size=4)
    plain: Any = {"engine": "sequential"}
    options = plain | {
        "problem": federation,
        "checkpoints": Checkpoints(tmp_path / "checkpoint", 4),
    }
    with pytest.raises(KeyboardInterrupt):
        run(8, solver=solver, store=make_store(kind, tmp_path), **options)
    assert Checkpoints(tmp_path / "checkpoint").latest_round() == 5
    again = Checkpoints(tmp_path / "checkpoint")
    result = run(8, store=make_store(kind, tmp_path), checkpoints=again, resume=True, **plain)
    assert_continued(result, run(8, **plain), 5)


def test_ctrl_c_waits_for_callbacks_and_checkpoints(tmp_path: Path) -> None:
    seen: list[int] = []

    def observe(report: RoundReport) -> None:
        if report.record["round"] == 3:
            signal.raise_signal(signal.SIGINT)
        seen.append(report.record["round"])

    with pytest.raises(KeyboardInterrupt):
        run(8, checkpoints=Checkpoints(tmp_path), callbacks=[observe])
    assert seen == [1, 2, 3]
    assert Checkpoints(tmp_path).latest_round() == 3


def test_a_run_in_a_thread_needs_no_signals(tmp_path: Path) -> None:
    results: list[fa.Result] = []
    work = lambda: results.append(run(3, checkpoints=Checkpoints(tmp_path)))  # noqa: E731
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert_continued(results[0], run(3), 0)


def test_a_finished_run_is_over(tmp_path: Path) -> None:
    first = run(5, checkpoints=Checkpoints(tmp_path, 2))
    again = run(5, checkpoints=Checkpoints(tmp_path, 2), resume=True)
    assert_continued(again, first, 5)


def test_a_finished_run_can_be_made_longer(tmp_path: Path) -> None:
    run(5, checkpoints=Checkpoints(tmp_path))
    longer = run(8, checkpoints=Checkpoints(tmp_path), resume=True)
    assert_continued(longer, run(8), 5)


def test_a_run_that_met_its_target_is_over(tmp_path: Path) -> None:
    target = fa.Target("loss", 0.69, at_least=False)
    first = run(50, checkpoints=Checkpoints(tmp_path), target=target)
    assert first.code == "target"
    again = run(50, checkpoints=Checkpoints(tmp_path), target=target, resume=True)
    assert_continued(again, first, len(first.history))


NEAR, FAR = (fa.Target("loss", value, at_least=False) for value in (0.6895, 0.0))
ENDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "another target": ({"target": NEAR}, {"target": FAR}),
    "no target": ({"target": NEAR}, {}),
    "another tolerance": ({"tolerance": 0.5}, {"tolerance": 1e-9}),
    "something else": ({"target": NEAR}, {"tolerance": 1e-9, "patience": 9}),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_run_that_has_met_its_end_goes_on_to_another(case: str, tmp_path: Path) -> None:
    """As a run does that had this end from the first round on."""
    near, far = ENDS[case]
    first = run(8, checkpoints=Checkpoints(tmp_path, 1), **near)
    done = len(first.history)
    assert first.code in near
    assert done < 8
    again = run(8, checkpoints=Checkpoints(tmp_path, 1), resume=True, **near)
    assert (again.history, again.code, again.status) == ([], first.code, first.status)
    rest = run(8, checkpoints=Checkpoints(tmp_path, 1), resume=True, **far)
    assert_continued(rest, run(8, **far), done)


def test_patience_that_ran_out_in_the_last_round_lets_no_longer_run_begin(tmp_path: Path) -> None:
    """A whole run would have ended there; the same number of rounds is complete."""
    options: dict[str, Any] = {"target": fa.Target("loss", 9.0, end_run=False), "patience": 2}
    whole = run(8, **options)
    done = len(whole.history)
    assert whole.code == "patience"
    for rounds in (done, 8):
        found = run(rounds, checkpoints=Checkpoints(tmp_path, 1), resume=rounds > done, **options)
        assert len(found.history) == (done if rounds == done else 0)
    assert_continued(found, whole, done)


def test_a_complete_run_that_has_spent_its_budget_is_over_but_may_not_go_on(tmp_path: Path) -> None:
    solver = fa.DPSGD(0.1, 1.0, 1.0, batch_size=12)
    spent = [r["privacy"]["epsilon"] for r in run(4, sampler=None, solver=solver).history]
    solver = fa.DPSGD(0.1, 1.0, 1.0, batch_size=12, budget=spent[2] + 1e-6)
    options: dict[str, Any] = {"sampler": None, "solver": solver}
    first = run(3, checkpoints=Checkpoints(tmp_path, 1), **options)
    again = run(3, checkpoints=Checkpoints(tmp_path, 1), resume=True, **options)
    assert (again.history, again.code, again.status) == ([], "completed", first.status)
    with pytest.raises(fa.errors.StateError, match=naming("budget")):
        run(4, checkpoints=Checkpoints(tmp_path, 1), resume=True, **options)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_run_that_diverged_diverges_again(kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "algorithm": fa.FedAvg() if kind == "memory" else fa.FedADMM(rho=0.5)
    }
    federation = problem(torch.float32)
    federation.clients[5].features.mul_(1e25)
    options |= {"problem": federation, "solver": fa.SGD(lr=1e20, batch_size=4), "evaluate": False}
    reference = run(30, **options)
    assert reference.code == "diverged"
    done = len(reference.history) - 1

    def go(resume: bool) -> fa.Result:
        options["checkpoints"] = Checkpoints(tmp_path / "checkpoint")
        return run(30, store=make_store(kind, tmp_path), resume=resume, **options)

    assert go(resume=False).status == reference.status
    assert Checkpoints(tmp_path / "checkpoint").latest_round() == (done or None)
    again = go(resume=True)
    assert len(again.history) == 1
    assert again.history[-1]["cohort"] == reference.history[-1]["cohort"]
    assert again.status == reference.status


def test_divergence_is_judged_by_the_first_loss_of_the_whole_run(tmp_path: Path) -> None:
    losses: dict[int, float] = {}
    saved: list[float | None] = []

    def observe(report: RoundReport) -> None:
        losses[report.record["round"]] = report.record["metrics"]["loss"]
        saved.append(report.state.components["divergence"].loss)
        if report.record["round"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(8, checkpoints=Checkpoints(tmp_path), callbacks=[observe])
    run(
        8,
        checkpoints=Checkpoints(tmp_path),
        callbacks=[lambda r: saved.append(r.state.components["divergence"].loss)],
        resume=True,
    )
    assert set(saved) == {losses[1]}


def test_another_configuration_is_rejected_field_by_field(tmp_path: Path) -> None:
    old = {"algorithm.rho": 0.5, "seed": 3, "layers": (1, 2), "gone": True}
    run(3, checkpoints=Checkpoints(tmp_path), fingerprint=old)
    new = {"algorithm.rho": 0.25, "seed": 3, "layers": (1, 2), "new": "x"}
    before = contents(tmp_path)
    with pytest.raises(fa.errors.StateError) as refused:
        run(6, checkpoints=Checkpoints(tmp_path), fingerprint=new, resume=True)
    message = str(refused.value)
    for names in ("algorithm.rho 0.5 0.25", "gone true", 'new "x"'):
        assert re.match(naming(names), message)
    assert "seed" not in message
    assert "layers" not in message
    assert contents(tmp_path) == before
    run(6, checkpoints=Checkpoints(tmp_path), fingerprint=old, resume=True)


def test_without_a_fingerprint_the_run_describes_itself(tmp_path: Path) -> None:
    run(3, checkpoints=Checkpoints(tmp_path))
    with pytest.raises(fa.errors.StateError, match=naming('algorithm "fedadmm" "fedavg"')):
        run(3, algorithm=fa.FedAvg(), checkpoints=Checkpoints(tmp_path), resume=True)
    with pytest.raises(fa.errors.StateError, match=naming("seed 3 4")):
        run(3, seed=4, checkpoints=Checkpoints(tmp_path), resume=True)


def test_a_checkpoint_needs_the_kind_of_store_it_was_written_with(tmp_path: Path) -> None:
    run(3, checkpoints=Checkpoints(tmp_path))
    with pytest.raises(fa.errors.StateError, match=naming("memory clients disk")):
        run(
            3, checkpoints=Checkpoints(tmp_path), store=DiskStore(tmp_path / "clients"), resume=True
        )


def test_resuming_needs_checkpoints() -> None:
    with pytest.raises(fa.errors.ParameterError, match=naming("resume True checkpoints None")):
        run(3, resume=True)
    with pytest.raises(fa.errors.ParameterError, match=naming("every -1")):
        Checkpoints("somewhere", -1)


def test_a_store_that_cannot_be_saved_is_rejected(tmp_path: Path) -> None:
    class Plain:
        bind = get = commit = clients = prefetch = mark = undo = lambda *arguments: ()

    with pytest.raises(fa.errors.CompatibilityError, match=naming("Plain MemoryStore DiskStore")):
        run(3, store=Plain(), checkpoints=Checkpoints(tmp_path))


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_checkpoint_writes_only_what_changed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[str, list[int]]] = []
    write = codec.write

    def noting(path: Path, packed: codec.Packed, *, durable: bool) -> None:
        written.append((path.name.split(".safetensors")[0], packed.tensors.get("ids", [])))
        write(path, packed, durable=durable)

    monkeypatch.setattr(codec, "write", noting)
    # Two clients a round: nobody comes twice in four rounds, so nothing is merged.
    options: Any = {"sampler": fa.CyclicSampling(2), "store": make_store(kind, tmp_path)}
    run(4, checkpoints=Checkpoints(tmp_path / "checkpoint"), **options)
    for number in range(1, 5):
        names = [name for name, _ in written if name.startswith(f"round-{number:08d}")]
        assert sorted(names) == [f"round-{number:08d}.clients-0", f"round-{number:08d}.server"]
        ids = next(ids for name, ids in written if name == f"round-{number:08d}.clients-0")
        assert list(ids) == [2 * number - 2, 2 * number - 1]
    assert all(name.startswith("round") for name, _ in written)
    if kind == "disk":  # each record once, in the segment of its round
        folder = tmp_path / "checkpoint" / "clients"
        found = {n: [c for c, _ in scan(folder, n)] for n in existing(folder)}
        assert found == {n: [2 * n - 2, 2 * n - 1] for n in range(1, 5)}


def test_merging_bounds_what_is_kept(tmp_path: Path) -> None:
    most = 0

    def look(report: RoundReport) -> None:
        nonlocal most
        manifests = sorted(tmp_path.glob("*.json"))
        if manifests:
            parts = codec.read_json(manifests[-1])["parts"]
            most = max(most, sum(part["records"] for part in parts))

    run(40, checkpoints=Checkpoints(tmp_path), callbacks=[look], evaluate=False)
    assert CLIENTS < most <= 2 * CLIENTS


def test_two_checkpoints_are_kept_and_other_files_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    run(6, checkpoints=Checkpoints(tmp_path, 2))
    assert sorted(p.name for p in tmp_path.glob("*.json")) == [
        "round-00000004.json",
        "round-00000006.json",
    ]
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_reported_before_round_0(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    seen: list[int] = []
    with pytest.raises(fa.errors.StateError, match=naming(str(blocked))):
        run(3, checkpoints=Checkpoints(blocked), callbacks=[lambda report: seen.append(1)])
    assert seen == []


def test_the_digest_is_that_of_the_bytes() -> None:
    vector = torch.tensor([1.0, 2.0])
    expected = hashlib.sha256(bytes.fromhex("0000803f00000040")).hexdigest()
    assert params_sha256(vector) == expected
    assert params_sha256(torch.tensor([[1.0, 9.0], [2.0, 9.0]])[:, 0]) == expected


@pytest.mark.parametrize("make", [fa.MemoryStore, DiskStore.temporary], ids=["memory", "disk"])
@pytest.mark.parametrize("name", ["fedadmm", "aligned-admm", "scaffold"])
def test_a_run_resumed_from_memory_is_the_whole_run(name: str, make: Any) -> None:
    given = {"sampler": fa.UniformSampling(3), "solver": fa.GradientDescent(0.1)}
    federation, method = quadratics(12), ALGORITHMS[name]
    given["initial"] = federation.initial
    whole = fa.simulate(method, federation.problem, 6, **given)
    saved = MemoryCheckpoints({}, every=3)
    fa.simulate(method, federation.problem, 3, checkpoints=saved, store=make(), **given)
    later = MemoryCheckpoints(pickle.loads(pickle.dumps(saved.content)), every=3)
    rest = fa.simulate(
        method, federation.problem, 6, checkpoints=later, store=make(), resume=True, **given
    )
    assert [record["round"] for record in rest.history] == [4, 5, 6]
    assert torch.equal(rest.params, whole.params)
    for client in whole.clients:
        states = zip(
            trees.tensors(rest.clients[client]), trees.tensors(whole.clients[client]), strict=True
        )
        assert all(torch.equal(found, expected) for found, expected in states)


def test_a_checkpoint_in_memory_of_another_run_is_rejected() -> None:
    federation, saved = quadratics(12), MemoryCheckpoints({})
    given = {"initial": federation.initial, "solver": fa.GradientDescent(0.1)}
    fa.simulate(fa.FedAvg(), federation.problem, 1, checkpoints=saved, **given)
    with pytest.raises(fa.errors.StateError, match=naming("algorithm fedavg fedprox")):
        fa.simulate(fa.FedProx(0.1), federation.problem, 2, checkpoints=saved, resume=True, **given)
