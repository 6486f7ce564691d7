"""Seeds of the deterministic simulation for every change, and bugs that it must find."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedadmm.core import atomic_files, codec, pairwise_masks
from fedadmm.core.catch_up import CatchUp
from fedadmm.core.errors import StateError
from fedadmm.core.pipeline import Processed, UpdatePipeline
from fedadmm.flower import DropIn, dropin
from fedadmm.flower.protocol import admission, ledger, wire
from fedadmm.flower.secure_aggregation import masked_messages, pending_uploads as site_masking
from fedadmm.flower.server.service import Service
from fedadmm.flower.site import app as site, gate
from fedadmm.flower.site.site_state import SiteAccount, SiteState

from .books import Violation
from .disk import SimulatedDisk
from .plan import KINDS, make
from .scenario import run_seed

ROOT = Path(__file__).parents[2]
MOST, PART = 64, 32
"""Seeds of every change; and seeds of one test."""
LONG = 640
"""Seeds of a release, within which every bug must be found."""

run_once = cache(run_seed)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=pytest.mark.release if first >= MOST else ())
        for first in range(0, LONG, PART)
    ],
)
def test_every_invariant_holds(first: int) -> None:
    seeds = range(first, first + PART)
    counts: Counter[str] = Counter()
    for seed in seeds:
        try:
            counts += run_once(seed)
        except Violation as error:
            pytest.fail(f"{error}; python -m tests.simulation_testing --seed {seed}")
    assert counts["messages"] > 20 * len(seeds)
    assert counts["equal to the run without faults"] > len(seeds) // 8


def test_a_seed_always_gives_the_same_run() -> None:
    assert run_seed(16) == run_seed(16)


@pytest.mark.release
def test_two_processes_give_the_same_runs() -> None:
    """As `make dst` runs them; the counts add up to those of one process."""
    command = [sys.executable, "-m", "tests.simulation_testing", "--seeds", "3", "--workers", "2"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=True
    )
    assert done.stdout.startswith("3 seeds, 0 failed\n"), done.stdout
    wanted = sum((run_seed(seed) for seed in range(3)), Counter())
    assert f"{wanted['messages']:10d}  messages\n" in done.stdout


def test_all_kinds_of_faults_happen() -> None:
    told = {"loss": "lost messages", "delay": "late messages", "duplicates": "doubled messages"}
    told |= {"a liar": "lies", "second nodes": "messages"}
    missing = set(KINDS)
    seeds = (seed for seed in itertools.count() if make(seed).kinds & missing)
    for seed in itertools.islice(seeds, MOST):
        counts = run_once(seed)
        missing -= {kind for kind in missing if counts[told.get(kind, kind)]}
        if not missing:
            return
    pytest.fail(f"not in {MOST} seeds that may have it: {missing}")


# bugs on purpose ---------------------------------------------------------------------------------


def without_file_sync(patch: pytest.MonkeyPatch) -> None:
    """A file's contents are not synchronised before it gets its name."""
    sync = SimulatedDisk.sync

    def forgetful(self: SimulatedDisk, path: Path) -> None:
        if path.suffix != atomic_files.TEMPORARY:
            sync(self, path)

    patch.setattr(SimulatedDisk, "sync", forgetful)


def without_folder_sync(patch: pytest.MonkeyPatch) -> None:
    """A file's new name is not synchronised."""
    sync = SimulatedDisk.sync

    def forgetful(self: SimulatedDisk, path: Path) -> None:
        if path.suffix or path.name == "state":
            sync(self, path)

    patch.setattr(SimulatedDisk, "sync", forgetful)


def replay_without_sync(patch: pytest.MonkeyPatch) -> None:
    """A stored reply leaves although nobody knows whether its name is on the disk."""
    pending = SiteState.pending

    def hasty(self: SiteState) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(atomic_files, "sync", lambda path: None)
            return pending(self)

    patch.setattr(SiteState, "pending", hasty)


def reply_before_commit(patch: pytest.MonkeyPatch) -> None:
    """The upload leaves, and its state is never written."""
    patch.setattr(SiteState, "commit", lambda *_: None)


def acknowledge_before_fold(patch: pytest.MonkeyPatch) -> None:
    """The versions are saved first, and the state that holds them only then."""
    settle = Service.settle

    def hasty(self: Service, state: Any) -> None:
        moved = self.engine.ledger
        for accepted in self.engine._answers.values():
            moved = ledger.record_aggregated(moved, accepted.reply)
        self.disk.save(self.saved._replace(ledger=moved), {})
        settle(self, state)

    patch.setattr(Service, "settle", hasty)


def task_before_checkpoint(patch: pytest.MonkeyPatch) -> None:
    """Every other checkpoint is left out: the next tasks acknowledge what only memory knows."""
    settle, turns = Service.settle, itertools.count()

    def lazy(self: Service, state: Any) -> None:
        if next(turns) % 2:
            with pytest.MonkeyPatch.context() as inner:
                inner.setattr(self.disk, "save", lambda *_: {})
                settle(self, state)
        else:
            settle(self, state)

    patch.setattr(Service, "settle", lazy)


def reuse_a_version(patch: pytest.MonkeyPatch) -> None:
    """An update has the version of the one before it, and the server does not object."""
    reply_to = ledger.reply_to

    def same(task: Any, kind: Any, reason: str = "") -> Any:
        return reply_to(task, kind, reason)._replace(version=max(task.acked_version, 1))

    patch.setattr(site, "reply_to", same)
    patch.setattr(ledger, "reply_to", same)


def fold_twice(patch: pytest.MonkeyPatch) -> None:
    """A reply that was folded is folded again when it comes again."""
    patch.setattr(admission, "validate_reply", lambda *_: None)


def skip_the_seal_of_files(patch: pytest.MonkeyPatch) -> None:
    """What a file says about itself is believed."""
    decode = codec.decode

    def believe(data: bytes, limits: codec.Limits = codec.FILE) -> Any:
        packed = decode(data, limits)
        if limits is codec.MESSAGE:
            return packed
        named = {k: v for k, v in packed.tensors.items() if k != "body"}
        plain = {k: v for k, v in packed.plain.items() if k != "sha256"}
        packed.plain["sha256"] = codec.Packed(named, plain).sha256()
        return packed

    patch.setattr(codec, "decode", believe)


def skip_the_seal_of_replies(patch: pytest.MonkeyPatch) -> None:
    """A reply's digest is not compared with its content."""
    patch.setattr(admission, "is_sealed", lambda *_: True)


def without_locks(patch: pytest.MonkeyPatch) -> None:
    """Two processes may work in one folder."""
    lock = SimulatedDisk.lock

    def generous(self: SimulatedDisk, path: Path) -> Any:
        held = self._locks.copy()
        self._locks.clear()
        taken = lock(self, path)
        self._locks.update(held)
        return taken

    patch.setattr(SimulatedDisk, "lock", generous)


def weights_may_change(patch: pytest.MonkeyPatch) -> None:
    """A run goes on with other settings."""
    from fedadmm.flower.server.checkpoint import ServerState

    patch.setattr(ServerState, "_compare", lambda *_: None)


def take_nothing_out(patch: pytest.MonkeyPatch) -> None:
    """A client that lost its state starts again, and its old contribution stays."""
    patch.setattr(Service, "_without", lambda self, client, state: state)


def tell_the_own_step(patch: pytest.MonkeyPatch) -> None:
    """A client that comes back is also told of the virtual step of the round that it was in."""
    after_step = CatchUp.after_step

    def hasty(self: CatchUp, step: int, total: Any, clients: Any) -> CatchUp:
        made = after_step(self, step, total, clients)
        before = {step: self.total} if clients else {}
        return made._replace(sums={**made.sums, **before})

    patch.setattr(CatchUp, "after_step", hasty)


def forget_the_rest(patch: pytest.MonkeyPatch) -> None:
    """What was cut off an upload is not kept for the next one."""
    on_client = UpdatePipeline.on_client

    def careless(self: UpdatePipeline, *arguments: Any) -> Processed:
        made = on_client(self, *arguments)
        return made._replace(residual={name: 0 * left for name, left in made.residual.items()})

    patch.setattr(UpdatePipeline, "on_client", careless)


def a_budget_that_resets(patch: pytest.MonkeyPatch) -> None:
    """What a site has answered is counted for each process anew."""
    counted: dict[Any, int] = {}

    def count(self: SiteAccount) -> None:
        counted[self] = counted.get(self, 0) + 1

    patch.setattr(SiteAccount, "answered", lambda self: counted.get(self, 0))
    patch.setattr(SiteAccount, "count_answer", count)


def tell_before_noting(patch: pytest.MonkeyPatch) -> None:
    """What leaves is written down, and may be taken back by a power cut."""
    append = atomic_files.append

    def hasty(path: Path, data: bytes, *, durable: bool = False) -> None:
        append(path, data, durable=durable and path.name != gate.LEFT)

    patch.setattr(atomic_files, "append", hasty)


def reuse_a_mask(patch: pytest.MonkeyPatch) -> None:
    """A site keeps its key, and its masks depend on the pair alone."""
    made: dict[tuple[int, bytes], Any] = {}
    new_share = pairwise_masks.new_share

    def old(client: int, subject: str, identity: bytes) -> Any:
        share, private = made.setdefault((client, identity), new_share(client, subject, identity))
        signed = pairwise_masks._signer(identity).sign(
            pairwise_masks._statement(subject, client, share.public)
        )
        return share._replace(signature=signed), private

    patch.setattr(site_masking, "new_share", old)
    patch.setattr(pairwise_masks, "set_digest", lambda *_: "")


def mask_nothing(patch: pytest.MonkeyPatch) -> None:
    """Words leave as they are."""
    patch.setattr(site_masking, "masked", lambda words, *_: words)


def a_set_of_two(patch: pytest.MonkeyPatch) -> None:
    """A site is summed with whomever the server names."""
    release = site_masking.PendingUploads.release

    def obedient(self: Any, peers: Any, task: str, shares: Any, least: int, *more: Any) -> Any:
        return release(self, peers._replace(minimum=0), task, shares, 0, *more)

    patch.setattr(site_masking.PendingUploads, "release", obedient)


def under_two_sets(patch: pytest.MonkeyPatch) -> None:
    """A site does not remember for which set its upload left."""
    patch.setattr(site_masking.PendingUploads, "released", lambda _: [])


def near_the_last_set(patch: pytest.MonkeyPatch) -> None:
    """A site forgets that it demands the set of an upload that was not acknowledged."""
    demand = site_masking.PendingUploads.requirement

    def forgetful(self: Any, *given: Any) -> Any:
        found = demand(self, *given)
        return found._replace(others=())

    patch.setattr(site_masking.PendingUploads, "requirement", forgetful)


def forget_a_set(patch: pytest.MonkeyPatch) -> None:
    """A disk that refuses for a moment makes a site forget under which set its upload left."""
    patch.setattr(site_masking, "DamageError", StateError)


def without_approval(patch: pytest.MonkeyPatch) -> None:
    """A run begins at a site where somebody has to allow it first."""
    patch.setattr(gate.Gate, "_check_approved", lambda *_: None)


def metrics_without_approval(patch: pytest.MonkeyPatch) -> None:
    """A site measures models before any run is allowed."""
    patch.setattr(gate.Gate, "_some_run_is_approved", lambda _: True)


def policy_of_the_start(patch: pytest.MonkeyPatch) -> None:
    """A site reads its file once, and not for every message."""
    read, kept = gate.read_policy, dict[Path, Any]()

    def once(path: Path) -> Any:
        return kept[path] if path in kept else kept.setdefault(path, read(path))

    patch.setattr(gate, "read_policy", once)


def compute_a_repeated_task(patch: pytest.MonkeyPatch) -> None:
    """A site computes again what it has sent already; it shows where local work is random."""
    patch.setattr(SiteState, "pending", lambda _: None)


def saturate_metrics(patch: pytest.MonkeyPatch) -> None:
    """A metric that does not fit into the sum counts as the largest one that does."""
    words = site.metric_words

    def saturated(part: Any, weight: float, metrics: Any) -> Any:
        cut = {name: max(-1e6, min(1e6, value)) for name, value in metrics.items()}
        return words(part, weight, cut)

    patch.setattr(site, "metric_words", saturated)


def noise_without_account(patch: pytest.MonkeyPatch) -> None:
    """Uploads with noise leave a site and its privacy account does not count them."""
    patch.setattr(site, "_charge_release", lambda *_: None)


def statistics_beside_noise(patch: pytest.MonkeyPatch) -> None:
    """Statistics of the local work travel with an upload whose noise does not cover them."""
    words = site_masking.upload_words

    def more(job: Any, part: Any, client: int, done: Any) -> Any:
        made = words(job, part, client, done)
        statistics = part.fixed_point.counts([1.0] * 5)
        return made if job.pipeline.noise is None else np.concatenate([made, statistics])

    patch.setattr(site_masking, "upload_words", more)
    patch.setattr(masked_messages, "_statistics_length", lambda _: 15)


def forget_acknowledged_sets(patch: pytest.MonkeyPatch) -> None:
    """A site forgets the sets of uploads that the server acknowledged."""
    settled = site_masking.PendingUploads.discard

    def forgetful(self: Any) -> None:
        settled(self)
        if atomic_files.exists(self._sets):
            atomic_files.remove(self._sets)

    patch.setattr(site_masking.PendingUploads, "discard", forgetful)


def forget_the_sets_of_an_incarnation(patch: pytest.MonkeyPatch) -> None:
    """A site that is started again forgets the sets of its uploads."""
    forget = SiteState.forget

    def forgetful(self: SiteState) -> None:
        forget(self)
        if atomic_files.exists(self._folder / "sets-update.json"):
            atomic_files.remove(self._folder / "sets-update.json")

    patch.setattr(SiteState, "forget", forgetful)


def tell_that_a_result_overflows(patch: pytest.MonkeyPatch) -> None:
    """The kind of the answer of a masked site shows whether its result is finite."""
    ready = site_masking.SiteMasking.ready

    def honest(self: Any, job: Any, state: Any, task: Any, payload: Any, record: Any, done: Any):  # type: ignore[no-untyped-def]
        if done.record is None:
            return ledger.reply_to(task, ledger.ReplyKind.FAILED)
        return ready(self, job, state, task, payload, record, done)

    patch.setattr(site_masking.SiteMasking, "ready", honest)


def others_pass(patch: pytest.MonkeyPatch) -> None:
    """`DropIn` hands messages of other strategies to the app's functions."""
    guard = DropIn.mod

    def mod(self: Any, message: Any, context: Any, call_next: Any) -> Any:
        known = any(name in message.content for name in (wire.HELLO, wire.HEAD, wire.BODY))
        return guard(self, message, context, call_next) if known else call_next(message, context)

    patch.setattr(DropIn, "mod", mod)


def plain_steps(patch: pytest.MonkeyPatch) -> None:
    """The steps of an app's loop lack the method's terms."""
    patch.setattr(dropin.Correction, "_terms", lambda self, part, values: torch.zeros_like(values))


BUGS: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    without_file_sync: 0,
    without_folder_sync: 0,
    replay_without_sync: 171,
    reply_before_commit: 0,
    acknowledge_before_fold: 0,
    task_before_checkpoint: 0,
    reuse_a_version: 0,
    fold_twice: 36,
    skip_the_seal_of_files: 99,
    skip_the_seal_of_replies: 11,
    without_locks: 32,
    weights_may_change: 20,
    take_nothing_out: 0,
    tell_the_own_step: 0,
    forget_the_rest: 24,
    a_budget_that_resets: 4,
    tell_before_noting: 1,
    reuse_a_mask: 2,
    mask_nothing: 2,
    a_set_of_two: 3,
    under_two_sets: 6,
    near_the_last_set: 6,
    forget_a_set: 210,
    without_approval: 0,
    metrics_without_approval: 37,
    policy_of_the_start: 1,
    compute_a_repeated_task: 3,
    saturate_metrics: 7,
    noise_without_account: 2,
    statistics_beside_noise: 2,
    forget_acknowledged_sets: 15,
    forget_the_sets_of_an_incarnation: 47,
    tell_that_a_result_overflows: 3,
    others_pass: 0,
    plain_steps: 0,
}
"""By bug: a seed that finds it.  After a change of the simulation another seed may be the first one
(`python -m tests.simulation_testing --bugs`)."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_is_found(bug: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        bug(patch)
        tried = (BUGS[bug], *range(LONG))
        assert any(_fails(seed) for seed in tried), "no seed sees anything of it"


def _fails(seed: int) -> bool:
    try:
        run_seed(seed)
    except Violation:
        return True
    return False
