"""Defects that the simulation found, one test each."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
import torch

import fedadmm as fa
from fedadmm.core import atomic_files
from fedadmm.core.errors import StateError
from fedadmm.core.messages import ClientRecord
from fedadmm.flower.protocol.admission import seal
from fedadmm.flower.protocol.ledger import ReplyKind, ServerLedger, create_task, reply_to
from fedadmm.flower.server.run_recorder import EVENTS, RunRecorder, read_events
from fedadmm.flower.site.site_state import PENDING, SiteState
from fedadmm.run.state import RoundReport
from support.records import made

from .disk import SimulatedDisk, refusal
from .plan import Plan, make
from .scenario import Scenario, summable

SITE = Path("/site/run/client-0")


def test_a_reply_is_sent_again_only_when_its_name_is_on_the_disk() -> None:
    """The process that committed it met an error, or died, between the rename and the folder."""
    refused: list[str] = []

    def before(call: str, path: str) -> None:
        if call == "sync" and path in refused:
            raise refusal(errno.EIO, path)

    disk = SimulatedDisk(before)
    with atomic_files.using(disk):
        task = create_task(ServerLedger("run"), 0, 0, "cast")
        reply = seal(reply_to(task, ReplyKind.UPDATE), b"body")
        site = SiteState(SITE)
        refused.append(str(SITE))
        with pytest.raises(StateError, match="Input/output error"):
            site.commit(
                reply, b"body", ClientRecord(fa.FedADMM(rho=1.0).init_client(torch.ones(2)), None)
            )
        assert disk.survivor(f"{SITE}/{PENDING}") is None
        with pytest.raises(StateError, match="Input/output error"):
            SiteState(SITE).pending()
        refused.clear()
        assert SiteState(SITE).pending() == (reply, b"body")
    assert disk.survivor(f"{SITE}/{PENDING}") is not None


def test_events_that_a_crash_tore_are_left_out(tmp_path: Path) -> None:
    whole = b'{"reason": "lost"}\n'
    for torn in (b'{"rea', bytes(12), b'{"reas{"reason": "norm"}\n'):
        (tmp_path / EVENTS).write_bytes(whole + torn)
        directory = RunRecorder(tmp_path)
        record = made(1) | {"network": {"events": [{"reason": "norm"}]}}
        directory(RoundReport(None, record, (), None))  # type: ignore[arg-type]
        assert read_events(tmp_path) == [{"reason": "lost"}, {"reason": "norm"}]


def test_a_damaged_summary_does_not_stop_a_server(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_bytes(b'{"code": "run')
    federation = make(0).federation
    directory = RunRecorder(tmp_path, federation)
    directory(RoundReport(None, made(1), (), None))  # type: ignore[arg-type]
    assert directory.rounds == 0
    assert json.loads((tmp_path / "summary.json").read_text())["code"] == "running"


def test_after_the_first_round_with_everybody_new_tasks_go_out_at_once() -> None:
    """Tasks of that round were sent again instead, until the server lost its patience."""
    seed = next(s for s in range(10**4) if _begins_with_everybody(make(s)))
    scenario = Scenario(seed)
    scenario.world.quiet = True
    assert scenario.run()["errors at the server"] == 0


def _begins_with_everybody(plan: Plan) -> bool:
    algorithm = plan.federation.experiment.algorithm
    initial = algorithm.requirements.initial_round
    return plan.federation.mode == "asynchronous" and initial is not None


@pytest.mark.parametrize(
    ("minimums", "lost", "able"),
    [
        ([3, 5, 3, 3, 5], set(), {0, 1, 2, 3, 4}),
        ([3, 5, 3, 3, 5], {4}, {0, 2, 3}),
        ([3, 5, 3, 3, 3], {0}, {2, 3, 4}),
        ([3, 5, 4, 3, 3], {0}, set()),  # 1 is out, then 2, and two are too few for the others
    ],
)
def test_a_site_whose_minimum_cannot_be_met_is_not_expected_to_take_part(
    minimums: list[int], lost: set[int], able: set[int]
) -> None:
    """One that waits for more sites than are left was reported as a site that takes no part."""
    assert summable(minimums, lost) == able
