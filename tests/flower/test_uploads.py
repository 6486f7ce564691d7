"""What leaves a site: encoded there, decoded at the server, as in a simulation."""

from __future__ import annotations

import json

import pytest
import torch

import fedadmm as fa
from fedadmm.core.privacy import Accountant
from fedadmm.flower.site.site_state import ACCOUNT

from .harness import Crash, FakeGrid, federation, run_through, simulated
from .test_bad_clients import retensored, saying

pytestmark = pytest.mark.usefixtures("quick")
METHODS = {
    "fedavg": fa.FedAvg(),
    "scaffold": fa.Scaffold(),
    "fedadmm": fa.FedADMM(rho=1.0),
    "aligned": fa.AlignedADMM(rho=1.0),
}
STAGES = {
    "top-k": [fa.AdaptiveClip(0.2), fa.TopK(3), fa.Quantise(4)],
    "random-k": [fa.Clip(0.2), fa.RandomK(0.5), fa.BFloat16()],
    "quantise": [fa.Quantise(2, block=4)],
}


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("name", METHODS)
def test_equal_to_simulate_although_the_server_dies(name, stages, tmp_path):
    settings = federation(
        METHODS[name], rounds=8, sampler=fa.UniformSampling(2), pipeline=STAGES[stages]
    )
    left = [3]

    def die(report):
        if left and report.record["round"] == left[0]:
            left.pop()
            raise Crash

    history = run_through(settings, FakeGrid(settings, tmp_path), tmp_path, die)
    wanted = simulated(settings)
    assert torch.equal(history.outcome.params, wanted.params)
    assert [r["traffic"]["bytes_up"] for r in history.records] == [
        r["traffic"]["bytes_up"] for r in wanted.history
    ]


def test_fewer_bytes_travel(tmp_path):
    sizes = {}
    for stages in ((), (fa.TopK(1), fa.BFloat16())):
        settings = federation(fa.FedAvg(), rounds=1, pipeline=stages)
        grid = FakeGrid(settings, tmp_path / str(len(stages)))
        seen: list[dict[str, torch.Tensor]] = []

        def look(content, client, seen=seen):
            retensored(lambda tensor: seen.append(tensor) or tensor)(content)
            return content

        grid.spoil = look
        run_through(settings, grid, tmp_path / str(len(stages)))
        sizes[len(stages)] = sum(t.numel() * t.element_size() for t in seen) / settings.clients
    assert sizes == {0: 6 * 4, 2: 1 + 2}  # a bit for each of six entries, and one number


def test_indices_that_cannot_be_are_refused(tmp_path):
    settings = federation(fa.FedAvg(), rounds=2, pipeline=[fa.TopK(0.5), fa.BFloat16()])
    grid = FakeGrid(settings, tmp_path)
    lie = retensored(lambda t: torch.full_like(t, 255) if t.dtype == torch.uint8 else t)
    grid.spoil = lambda content, client: lie(content) if client == 2 else content
    history = run_through(settings, grid, tmp_path)
    assert all(2 not in record["cohort"]["clients"] for record in history.records)
    assert "TopK: 6 indices came, but there must be 3" in str(
        history.records[0]["network"]["events"]
    )


def test_noise_is_accounted_for_and_never_drawn_again(tmp_path):
    upload = [fa.Clip(0.2), fa.GaussianNoise(1.0, 0.1, budget=9.0)]
    ends = []
    for folder in ("first", "second"):
        settings = federation(fa.FedAvg(), rounds=20, pipeline=upload, ledger="disk")
        history = run_through(settings, FakeGrid(settings, tmp_path / folder), tmp_path / folder)
        ends.append(history.outcome)
        account = Accountant(1.0, 0.1)
        spent = [record["privacy"]["epsilon"] for record in history.records]
        assert spent == [account.epsilon(k + 1) for k in range(len(spent))]
        assert spent[-1] <= 9.0 < account.epsilon(len(spent) + 1)
    assert ends[0].ending.code == ends[1].ending.code == "budget"
    assert not torch.isclose(ends[0].params, ends[1].params).any()
    assert not torch.isclose(ends[0].params, simulated(settings).params).any()


ROWS = 10
"""Of 30 rows in a step: three steps in an epoch."""


def noised(rounds, **options):
    made = fa.DPSGD(0.1, clip=0.5, multiplier=1.0, batch_size=ROWS, delta=0.01, **options)
    return federation(fa.FedAvg(), rounds=rounds, solver=made, ledger="disk")


def test_a_site_counts_its_own_noised_steps_whatever_gets_lost(tmp_path):
    """Two epochs of three steps in a round; the server learns of all when it hears again."""
    settings, number, dies = noised(5), [0], [True]
    grid = FakeGrid(settings, tmp_path)
    grid.offline = {0, 2, 3}
    grid.fault = lambda moment, message, client: (
        "drop" if (moment, client, number[0]) == ("reply", 1, 1) and is_task(message) else None
    )

    def act(report):
        number[0] = report.record["round"]
        grid.offline = {0, 2, 3} if number[0] >= 4 else set()
        if number[0] == 5 and dies:  # the round is made again, from the stored reply
            dies.pop()
            raise Crash
        if number[0] == 3:
            grid.wipe(1)

    history = run_through(settings, grid, tmp_path, act)
    assert history.trace == [[1], [0, 2, 3], [0, 1, 2, 3], [0, 2, 3], [1]]
    account = Accountant(1.0, 0.01, 1 / 3)
    # Client 1 has made 6, 12 (half of them unheard), 18 and, after it lost its count, 24 steps.
    heard = [6, 6, 18, 18, 24]
    spent = [record["privacy"]["epsilon"] for record in history.records]
    assert spent == [account.epsilon(steps) for steps in heard]
    assert not torch.isclose(history.outcome.params, simulated(settings).params).any()


def is_task(message):
    return message.metadata.group_id.isdigit()


def test_a_site_that_has_spent_its_budget_takes_no_part(tmp_path):
    settings = noised(20, budget=9.0)
    grid = FakeGrid(settings, tmp_path)

    def act(report):
        for path in (tmp_path / "site-2").rglob(ACCOUNT):
            row = {"multiplier": 1.0, "per_epoch": 3, "steps": 1000}
            path.write_text(json.dumps({"noised": [row]}))

    history = run_through(settings, grid, tmp_path, act)
    account = Accountant(1.0, 0.01, 1 / 3, budget=9.0)
    affordable = account.affordable // 6
    assert 2 <= affordable < 20
    assert history.outcome.ending.code == "budget"
    assert history.trace == [[0, 1, 2, 3], *[[0, 1, 3]] * (affordable - 1)]
    assert "after 1000 with its samples" in str(history.records[1]["network"]["events"])


def test_a_count_that_is_damaged_is_not_taken_for_nothing(tmp_path):
    settings = noised(4)
    grid = FakeGrid(settings, tmp_path)

    def act(report):
        for path in (tmp_path / "site-2").rglob(ACCOUNT):
            path.write_text('{"noised": [{"multiplier": 1.0}]}')

    history = run_through(settings, grid, tmp_path, act)
    assert history.trace == [[0, 1, 2, 3], *[[0, 1, 3]] * 3]
    assert "account.json is damaged" in str(history.records[1]["network"]["events"])


def longer(factor):
    """Vectors of a reply times a factor; what was encoded to bytes stays."""
    return retensored(lambda t: factor * t if t.is_floating_point() and t.numel() > 1 else t)


@pytest.mark.parametrize("stages", ["plain", "coded", "adaptive", "noised"])
def test_a_site_that_does_not_clip_is_refused(stages, tmp_path):
    """Two per cent too much already: the noise is made for the clip, and for nothing longer."""
    clip = fa.AdaptiveClip(0.2) if stages == "adaptive" else fa.Clip(0.2)
    more = {"coded": [fa.Quantise(8, block=2)], "noised": [fa.GaussianNoise(1.0, 0.1)]}
    settings = federation(fa.FedADMM(rho=1.0), rounds=3, pipeline=[clip, *more.get(stages, [])])
    grid = FakeGrid(settings, tmp_path)
    grid.spoil = lambda content, client: longer(1.02)(content) if client == 2 else content
    history = run_through(settings, grid, tmp_path)
    assert history.trace == [[0, 1, 3]] * 3
    assert history.outcome.counts == {"norm": 3}
    detail = history.records[0]["network"]["events"][0]["detail"]
    assert detail.startswith("the upload has norm 0.20")
    assert detail.endswith("but the clip allows 0.2")


@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16", "float16"])
def test_honest_sites_are_within_the_clip_in_every_precision(precision, tmp_path):
    initial = torch.linspace(-1, 1, 6, dtype=getattr(torch, precision))
    settings = federation(fa.FedADMM(rho=1.0), initial=initial, pipeline=[fa.Clip(0.01)])
    history = run_through(settings, FakeGrid(settings, tmp_path), tmp_path)
    assert history.outcome.counts == {}


def test_a_site_cannot_move_an_adaptive_clip_by_a_count(tmp_path):
    settings = federation(fa.FedAvg(), rounds=2, pipeline=[fa.AdaptiveClip(0.2)])
    grid = FakeGrid(settings, tmp_path)
    lie = retensored(lambda t: -1.0 + 0 * t if t.numel() == 1 else t)
    grid.spoil = lambda content, client: lie(content) if client == 2 else content
    history = run_through(settings, grid, tmp_path)
    assert history.trace == [[0, 1, 3]] * 2
    assert history.outcome.counts == {"range": 2}


def test_steps_that_cannot_have_been_made_cost_only_who_says_so(tmp_path):
    """Else one site would end the run of all, whose budget it says is spent."""
    settings = noised(3, budget=20.0)
    grid = FakeGrid(settings, tmp_path)
    grid.spoil = lambda content, client: (
        saying(info__noised=10**11)(content) if client == 2 else content
    )
    history = run_through(settings, grid, tmp_path)
    assert history.trace == [[0, 1, 3]] * 3
    assert history.outcome.ending.code == "completed"
    assert history.outcome.counts == {"range": 3}
