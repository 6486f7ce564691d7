"""What a lying server learns of one site of a masked run: nothing by the kind of its answers."""

from __future__ import annotations

import contextlib
import logging
import math
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict

import fedadmm as fa
from fedadmm.core import clock
from fedadmm.flower.protocol import wire
from fedadmm.flower.secure_aggregation import pending_uploads as site_masking
from fedadmm.flower.site import gate
from fedadmm.flower.site.site_state import NoisedStep, SiteAccount, SiteState
from fedadmm.run.client import record_layout

from .harness import DIMENSION, Clock, Crash, check_invariant, run_through
from .lying_server import RUN, LyingServer
from .masked import MaskedGrid, settings


@pytest.fixture(autouse=True)
def _time():
    with clock.using(Clock()):
        yield


def crafted(scale: float) -> torch.Tensor:
    """Rows whose first two features both exceed the largest float over `scale` overflow here."""
    return torch.tensor([scale, -scale] + [0.0] * (DIMENSION - 2))


def shape(content: RecordDict) -> dict[str, Any]:
    """What a server sees of an answer besides random bytes: records, kinds, lengths."""
    return {
        name: {
            key: len(value) if isinstance(value, bytes) else str(value)
            for key, value in dict(record).items()
            if key not in ("task", "digest", "sequence")
        }
        for name, record in content.items()
    }


METHODS = {
    "fedadmm": fa.FedADMM(0.5),
    "fedavg": fa.FedAvg(),
    "insa": fa.FedADMMInSa(),
    "scaffold": fa.Scaffold(),
    "feddr": fa.FedDR(0.5),
    "aligned": fa.AlignedADMM(0.5),
    "feddyn": fa.FedDyn(0.5),
}


@pytest.mark.parametrize("name", METHODS)
def test_the_answer_does_not_tell_whether_the_result_overflows(name, tmp_path, caplog):
    """Bisection over `scale` would read a feature of one site, a task per bit."""
    server = LyingServer(settings(METHODS[name]), tmp_path)
    scales = [0.0, 1e10, 1e37, 3e37, 1e38, 3e38]
    answers = [
        shape(server.ask(0, server.task(0, crafted(scale), sequence=k)))
        for k, scale in enumerate(scales)
    ]
    assert answers == [answers[0]] * len(scales)
    assert "the local result holds NaN or infinite entries" in caplog.text  # in the site's log
    assert "MaskedSum: bound is 50, but an upload has a larger entry" in caplog.text
    # the state is still the first one: nothing was computed that counts
    job = server.job
    site = SiteState(tmp_path / "site-0" / RUN / "client-0")
    kept = site._read("pending.safetensors")
    first = record_layout(job)
    for key, tensor in tensors_of(first.state).items():
        assert torch.equal(kept.packed.tensors[f"state.{key}"], tensor), key


def tensors_of(state: Any) -> dict[str, torch.Tensor]:
    return {k: v for k, v in state._asdict().items() if isinstance(v, torch.Tensor)}


@pytest.mark.parametrize("name", METHODS)
def test_a_result_that_overflows_is_an_increment_of_zero_and_the_work_of_any_other(name, tmp_path):
    """A smaller sum of steps than expected would show that somebody's result was not usable."""
    server = LyingServer(settings(METHODS[name]), tmp_path)
    everybody = range(4)
    good = server.sum({c: server.task(c, torch.zeros(DIMENSION)) for c in everybody})
    bad = server.sum(
        {c: server.task(c, crafted(3e38), sequence=1, round_index=1) for c in everybody}
    )
    for leaf in bad[0].message:
        assert leaf is None or not leaf.any()
    for ours, theirs in zip(good[1], bad[1], strict=True):
        assert ours.solve[:3] == theirs.solve[:3]
        assert ours.weight == pytest.approx(theirs.weight)
        assert theirs.drift == 0


def test_an_error_of_the_local_work_is_answered_like_a_result(tmp_path, monkeypatch, caplog):
    from fedadmm.flower.site import app

    server = LyingServer(settings(fa.FedADMM(0.5)), tmp_path)
    model = torch.zeros(DIMENSION)
    usual = server.ask(0, server.task(0, model))
    good = server.sum({c: server.task(c, model, sequence=1) for c in range(4)})

    def fail(*_: Any) -> Any:
        raise ValueError("row 7 is (0.25, 1.5)")

    monkeypatch.setattr(app, "client_round", fail)
    with caplog.at_level(logging.ERROR):
        failed = server.ask(0, server.task(0, model, sequence=2, round_index=2))
    assert shape(failed) == shape(usual)
    assert "row 7" in caplog.text
    bad = server.sum({c: server.task(c, model, sequence=3, round_index=1) for c in range(4)})
    for ours, theirs in zip(good[1], bad[1], strict=True):
        assert ours.solve[:3] == theirs.solve[:3]
        assert ours.weight == pytest.approx(theirs.weight)
    # a run without masks goes on to report the failure
    plain = settings(rounds=1, aggregator=fa.Sum())
    (tmp_path / "plain").mkdir()
    grid = MaskedGrid(plain, tmp_path / "plain")
    with pytest.raises(fa.errors.EngineError) as ended:
        run_through(plain, grid, tmp_path / "plain")
    assert any("the site's app failed with ValueError" in error for error in grid.errors)
    for word in ("clients 0, 1, 2, 3", "ValueError", "its own log"):  # who failed, and of what
        assert word in str(ended.value)
    assert "row 7" not in str(ended.value)


def test_a_site_whose_upload_exceeds_the_bound_takes_part_and_stays_where_it_is(tmp_path, caplog):
    """The server's mean remains the mean of what is on the sites' disks."""
    made = settings(fa.FedADMM(0.5), rounds=4, aggregator=fa.MaskedSum(bound=0.4))
    history = run_through(made, MaskedGrid(made, tmp_path), tmp_path)
    assert "but an upload has a larger entry" in caplog.text
    assert history.trace == [[0, 1, 2, 3]] * 4
    check_invariant(made, tmp_path, 5e-6)


# one model for all sites of a sum ---------------------------------------------------------------


def test_sites_of_one_sum_must_have_got_the_same_model(tmp_path):
    """Others whose increment is known, here zero, would leave the upload of one site in the sum."""
    server = LyingServer(settings(fa.FedAvg()), tmp_path)
    tasks = {c: server.task(c, crafted(3e38)) for c in (1, 2, 3)}
    tasks[0] = server.task(0, torch.zeros(DIMENSION))
    with pytest.raises(fa.errors.StateError, match="not signed by the identity"):
        server.sum(tasks)


def test_sites_of_one_sum_must_have_the_same_round_and_the_same_fitted_penalty(tmp_path):
    made = settings(fa.FedADMM(rho=fa.PerWork(0.25)))
    server, model = LyingServer(made, tmp_path, job=made.fitted(1.0)), torch.zeros(DIMENSION)

    def task(client: int, length: float, round_index: int = 0, sequence: int = 0) -> RecordDict:
        content = server.task(client, model, round_index=round_index, sequence=sequence)
        content[wire.WORK] = ConfigRecord({"length": length})
        return content

    assert server.sum({c: task(c, 1.0) for c in range(4)})
    for tasks in (
        {c: task(c, 1.0 if c == 0 else 1e-9, 0, 1) for c in range(4)},
        {c: task(c, 1.0, c % 2 + 1, 2) for c in range(4)},
    ):
        with pytest.raises(fa.errors.StateError, match="not signed by the identity"):
            server.sum(tasks)


def test_sites_of_one_sum_of_metrics_must_have_measured_the_same_model(tmp_path):
    """The loss of a logistic regression at zero is log 2, whatever the data are."""
    server = LyingServer(settings(), tmp_path)
    models = {c: torch.zeros(DIMENSION) if c else torch.ones(DIMENSION) for c in range(4)}
    with pytest.raises(fa.errors.StateError, match="not signed by the identity"):
        server.metrics(models)
    assert len(server.metrics(dict.fromkeys(range(4), torch.ones(DIMENSION)))) == 4


# noise in shares --------------------------------------------------------------------------------


@pytest.fixture
def noised():
    pytest.importorskip("dp_accounting")
    upload = [fa.Clip(0.5), fa.GaussianNoise(4.0, 1e-2)]
    return settings(fa.FedAvg(), pipeline=upload, aggregator=fa.MaskedSum(), rounds=2)


def test_only_noised_words_leave_where_noise_is_added_in_shares(noised, tmp_path, monkeypatch):
    """No statistic of the local work is covered by the noise, however small its sum is."""
    plain = []
    masked = site_masking.masked

    def listening(words, *rest):
        plain.append(words)
        return masked(words, *rest)

    monkeypatch.setattr(site_masking, "masked", listening)
    server = LyingServer(noised, tmp_path)
    server.sum({c: server.task(c, torch.zeros(DIMENSION)) for c in range(4)})
    assert {len(words) for words in plain} == {DIMENSION}  # the entries of the message alone


def test_answers_of_neighbouring_data_sets_look_alike_with_noise(noised, tmp_path):
    """One site's result overflows and its neighbour's does not; both uploads are counted."""
    server = LyingServer(noised, tmp_path)
    answers = [
        shape(server.ask(0, server.task(0, model, sequence=k)))
        for k, model in enumerate([torch.zeros(DIMENSION), crafted(3e38)])
    ]
    assert answers[0] == answers[1]
    server.sum({c: server.task(c, crafted(3e38), sequence=2) for c in range(4)})
    assert SiteAccount(tmp_path / "site-0", 0).spent() == {NoisedStep(4.0, 1): 1}


def test_records_of_a_run_with_noise_do_not_invent_the_work(noised, tmp_path):
    history = run_through(noised, MaskedGrid(noised, tmp_path), tmp_path)
    for record in history.records:
        work = record["work"]
        assert all(math.isnan(work[entry]) for entry in ("epochs", "passes", "primal_residual"))
        assert math.isnan(work["penalty_mean"])


# two sums of the same uploads -------------------------------------------------------------------

MODEL = torch.linspace(-1, 1, DIMENSION)


def digests(server: LyingServer, tasks: dict[int, RecordDict]) -> dict[int, str]:
    """The digests by which a server acknowledges the uploads to these tasks."""
    return {c: server.ask(c, task)[wire.HEAD]["digest"] for c, task in tasks.items()}


def repeated(server: LyingServer, how: str, clients: range) -> dict[int, RecordDict]:
    """Tasks that make the sites repeat the uploads which they sent to tasks of sequence 0."""
    first = {c: server.task(c, MODEL) for c in range(server.job.problem.num_clients)}
    if how == "a new sequence":
        return {c: server.task(c, MODEL, sequence=1) for c in clients}
    known = digests(server, first)
    if how == "an acknowledgement":  # a method without state repeats itself after it
        return {
            c: server.task(c, MODEL, sequence=1, acked_version=1, acked_digest=known[c])
            for c in clients
        }
    assert how == "a new incarnation"
    for c in clients:  # acknowledged first, so that nothing is left to demand
        server.ask(c, server.task(c, 0 * MODEL, sequence=1, acked_version=1, acked_digest=known[c]))
    return {c: server.task(c, MODEL, sequence=2, incarnation=1) for c in clients}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("how", ["a new sequence", "an acknowledgement", "a new incarnation"])
@pytest.mark.parametrize("method", ["fedavg", "fedadmm"])
def test_uploads_of_one_round_are_never_summed_over_two_sets(method, how, strict, tmp_path):
    """The difference of both sums would be the upload of client 0."""
    policy = {"sets-apart": strict}
    server = LyingServer(settings(METHODS[method]), tmp_path, **policy)
    total, _ = server.sum({c: server.task(c, MODEL) for c in range(4)})
    assert any(leaf is not None and leaf.any() for leaf in total.message)
    tasks = repeated(server, how, range(1, 4))
    with pytest.raises(
        fa.errors.StateError, match=r"of this round was released for clients \[0, 1, 2, 3\]"
    ):
        server.sum(tasks)


def test_a_third_set_in_between_does_not_make_a_site_forget_the_first(tmp_path):
    """{0,…,3}, then a set far from it, then {1, 2, 3, 4}: the last is next to the first."""
    made = settings(fa.FedAvg(), clients=10, solver=fa.GradientDescent(lr=0.1), stop=fa.Steps(2))
    server = LyingServer(made, tmp_path, **{"sets-apart": True})

    def tasks(clients: list[int], number: int) -> dict[int, RecordDict]:
        return {c: server.task(c, MODEL, round_index=number, sequence=number) for c in clients}

    server.sum(tasks([0, 1, 2, 3], 0))
    server.sum(tasks([1, 2, 3, 4, 5, 6, 7], 1))  # differs from the first by five
    with pytest.raises(fa.errors.StateError, match=r"released for clients \[0, 1, 2, 3\]"):
        server.sum(tasks([1, 2, 3, 8], 2))


def test_a_strict_site_sends_uploads_of_one_model_under_one_set_although_they_count(tmp_path):
    """With full gradients the uploads of two rounds from one model are equal."""
    made = settings(fa.FedAvg(), solver=fa.GradientDescent(lr=0.1), stop=fa.Steps(2))
    server = LyingServer(made, tmp_path, **{"sets-apart": True})
    first = {c: server.task(c, MODEL) for c in range(4)}
    server.sum(first)
    known = digests(server, first)
    given = {"round_index": 1, "sequence": 1, "acked_version": 1}
    tasks = {c: server.task(c, MODEL, acked_digest=known[c], **given) for c in (1, 2, 3)}
    with pytest.raises(fa.errors.StateError, match=r"released for clients \[0, 1, 2, 3\]"):
        server.sum(tasks)
    # another model is another upload, and what was acknowledged demands nothing of it
    others = {c: server.task(c, 0 * MODEL, acked_digest=known[c], **given) for c in (1, 2, 3)}
    assert server.sum(others)


def test_metrics_of_one_model_are_never_summed_over_two_sets(tmp_path):
    """They are exact: two sums would show the loss of one site."""
    server = LyingServer(settings(), tmp_path)
    server.metrics(dict.fromkeys(range(4), MODEL))
    with pytest.raises(
        fa.errors.StateError, match=r"of this model was released for clients \[0, 1, 2, 3\]"
    ):
        server.metrics(dict.fromkeys(range(1, 4), MODEL), number=2)
    assert server.metrics(dict.fromkeys(range(1, 4), 2 * MODEL), number=3)


def test_a_server_that_begins_the_round_anew_sums_the_same_set(tmp_path):
    """Client 4 comes online between the crash and the second attempt, and waits for a round."""
    made = settings(fa.FedADMM(0.5), rounds=3, clients=5)
    grid = MaskedGrid(made, tmp_path)
    grid.offline = {4}

    def fault(moment, message, client):
        if moment == "reply" and wire.SET in message.content and grid.offline:
            grid.offline = set()
            raise Crash
        return

    grid.fault = fault
    history = run_through(made, grid, tmp_path)
    assert history.crashes == 1
    assert history.trace == [[0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
    assert grid.errors == []
    check_invariant(made, tmp_path, 5e-6)


def test_a_damaged_memory_of_sets_ends_a_sites_part_in_the_run(tmp_path):
    """Nobody else knows under which sets its uploads left."""
    server = LyingServer(settings(), tmp_path)
    server.sum({c: server.task(c, MODEL) for c in range(4)})
    (tmp_path / "site-1" / RUN / "client-1" / "sets-update.json").write_text("{}")
    with pytest.raises(fa.errors.StateError, match=r"sets-update.json is damaged.*begin a new run"):
        server.ask(1, server.task(1, 0 * MODEL, round_index=1, sequence=1))


def test_no_words_leave_in_a_round_with_everybody_that_cannot_be_used(tmp_path):
    """They would bind their sites to a set without client 3, in a round that is made again."""
    made = settings(fa.FedDR(0.5, init="prox"), rounds=2)
    grid = MaskedGrid(made, tmp_path)
    grid.policy |= {"approval": True}
    approve(tmp_path, grid, made, range(3))
    with pytest.raises(
        fa.errors.EngineError, match=r"FedDR needs all clients, but 1 did not bring"
    ):
        run_through(made, grid, tmp_path)
    assert not any(wire.BODY in content for content in grid.seen)
    approve(tmp_path, grid, made, range(3, 4))
    assert run_through(made, grid, tmp_path).trace[-1] == [0, 1, 2, 3]


def approve(folder: Any, grid: MaskedGrid, made: Any, clients: range) -> None:
    """Somebody at these sites allows the run that asked for it."""
    with contextlib.suppress(fa.errors.EngineError):
        run_through(made, grid, folder)
    for client in clients:
        for run in gate.waiting(folder / f"site-{client}"):
            gate.approve(folder / f"site-{client}", run)
