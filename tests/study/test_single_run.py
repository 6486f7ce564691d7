"""The run directory: complete, readable on the way, resumed without gap or repetition."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import fedadmm as fa
from fedadmm.core.atomic_files import locked
from fedadmm.core.errors import CompatibilityError, ConfigError, StateError
from fedadmm.run.experiment import Experiment
from fedadmm.run.stores import params_sha256
from fedadmm.study import config as configs
from fedadmm.study.config import resolve
from fedadmm.study.run_dir import RunDir
from fedadmm.study.run_history import MOST_CLIENTS, partition_of
from fedadmm.study.single_run import run
from support.commands import SMALL
from support.records import made, untimed


def small(**changes: Any) -> Experiment:
    return resolve(SMALL | changes)


def records(directory: Path) -> list[dict[str, Any]]:
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return untimed(map(json.loads, lines))


def interrupt_in_round(number: int) -> Any:
    def press(report: Any) -> None:
        if report.record["round"] == number:
            raise KeyboardInterrupt

    return press


def test_a_run_directory_holds_what_simulate_gives(tmp_path: Path) -> None:
    chosen = small()
    summary = run(chosen, tmp_path)
    problem = chosen.load_problem()
    result = fa.simulate(
        chosen.algorithm,
        problem,
        chosen.rounds,
        sampler=chosen.sampler,
        solver=chosen.local.solver,
        stop=chosen.local.stop,
        seed=chosen.seed,
        initial=problem.start(0).float(),
    )
    assert summary["params_sha256"] == params_sha256(result.params)
    written = records(tmp_path)
    for line, record in zip(written, result.history, strict=True):
        assert line["metrics"]["loss"] == record["metrics"]["loss"]
        assert line["cohort"]["clients"] == record["cohort"]["clients"]
    assert resolve(configs.read(str(tmp_path))) == chosen
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert summary["bytes_up"] == sum(record["traffic"]["bytes_up"] for record in result.history)
    assert summary["final"]["loss"] == result.history[-1]["metrics"]["loss"]


@pytest.mark.parametrize("store", ["memory", "disk"])
@pytest.mark.parametrize("every", [0, 2])
def test_an_interrupted_run_goes_on_to_the_same_result(
    tmp_path: Path, store: str, every: int
) -> None:
    config = small(rounds=6, checkpoint={"every": every}, store={"name": store})
    whole = run(config, tmp_path / "whole")
    broken = tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        run(config, broken, callbacks=[interrupt_in_round(3)])
    assert RunDir(broken).summary()["code"] == "interrupted"
    resumed = run(config, broken, resume=True)
    assert resumed["params_sha256"] == whole["params_sha256"]
    assert records(broken) == records(tmp_path / "whole")


def test_half_a_line_and_lines_after_the_checkpoint_are_cut(tmp_path: Path) -> None:
    config = small(rounds=6)
    whole = run(config, tmp_path / "whole")
    broken = tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        run(config, broken, callbacks=[interrupt_in_round(4)])
    metrics = broken / "metrics.jsonl"
    metrics.write_text(metrics.read_text() + '{"round": 77}\n{"round": 78, "lo')
    assert run(config, broken, resume=True)["params_sha256"] == whole["params_sha256"]
    assert [record["round"] for record in records(broken)] == [1, 2, 3, 4, 5, 6]


def test_a_run_whose_last_lines_a_power_cut_took_goes_on_with_a_gap(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = small(rounds=6)
    whole = run(config, tmp_path / "whole")
    tmp_path /= "cut"
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path, callbacks=[interrupt_in_round(4)])
    metrics = tmp_path / "metrics.jsonl"
    left = metrics.read_text().splitlines(keepends=True)[:1]
    metrics.write_text("".join(left) + '{"round": 2, "lo')
    with caplog.at_level("WARNING"):
        summary = run(config, tmp_path, resume=True)
    assert summary["params_sha256"] == whole["params_sha256"]
    kept = [record["round"] for record in records(tmp_path)]
    assert kept[0] == 1
    assert kept[-1] == 6
    assert len(kept) < 6
    assert "as after a power cut; the run goes on" in caplog.text


def test_a_finished_run_is_returned_and_a_longer_one_goes_on(tmp_path: Path) -> None:
    first = run(small(rounds=4), tmp_path / "a")
    again = run(small(rounds=4), tmp_path / "a", resume=True, callbacks=[interrupt_in_round(1)])
    assert again == first
    longer = run(small(rounds=6), tmp_path / "a", resume=True, callbacks=[interrupt_in_round(4)])
    assert longer["rounds"] == 6
    assert longer["params_sha256"] == run(small(rounds=6), tmp_path / "b")["params_sha256"]


def test_the_threads_are_in_the_summary_and_may_change_on_the_way(tmp_path: Path) -> None:
    assert run(small(threads=2), tmp_path)["threads"] == 2
    assert run(small(rounds=5, threads=1), tmp_path, resume=True)["threads"] == 1
    with pytest.raises(ConfigError, match="threads"):
        small(threads=0)


def test_another_configuration_is_refused_with_the_differing_keys(tmp_path: Path) -> None:
    run(small(), tmp_path)
    changed = small(algorithm={"name": "fedadmm", "rho": 2.0}, seed=5)
    with pytest.raises(StateError, match=r"differs in algorithm.rho \(1.0 -> 2.0\), seed \(0 -> 5"):
        run(changed, tmp_path, resume=True)
    with pytest.raises(ConfigError, match="already holds a run; add --resume"):
        run(small(), tmp_path)


def test_a_target_ends_the_run_or_is_only_counted(tmp_path: Path) -> None:
    free = run(small(rounds=8), tmp_path / "free")
    losses = [record["metrics"]["loss"] for record in records(tmp_path / "free")]
    target = {"metric": "loss", "value": losses[2], "at_least": False}
    first = next(i for i, loss in enumerate(losses, 1) if loss <= losses[2])
    ended = run(small(rounds=8, target=target), tmp_path / "ended")
    assert (ended["rounds"], ended["code"]) == (first, "target")
    counted = run(small(rounds=8, target=target | {"end_run": False}), tmp_path / "counted")
    assert (counted["rounds"], counted["rounds_to_target"]) == (8, first)
    assert counted["params_sha256"] == free["params_sha256"]
    until = records(tmp_path / "free")[:first]
    assert counted["bytes_to_target"] == sum(
        r["traffic"]["bytes_up"] + r["traffic"]["bytes_down"] for r in until
    )


def test_a_target_that_nothing_measures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"target.metric is 'los', .*did you mean loss"):
        run(small(target={"metric": "los", "value": 1.0}), tmp_path)


def test_a_diverged_run_has_json_without_nan(tmp_path: Path) -> None:
    local = SMALL["local"] | {"solver": {"name": "gradient-descent", "lr": 1e6}}
    config = small(rounds=200, local=local)
    summary = run(config, tmp_path)
    assert summary["code"] == "diverged"
    for path in (tmp_path / "metrics.jsonl", tmp_path / "summary.json"):
        assert "NaN" not in path.read_text()
        assert "Infinity" not in path.read_text()


def test_precision_is_that_of_the_initial_vector(tmp_path: Path) -> None:
    single = run(small(), tmp_path / "single")
    double = run(small(precision="float64"), tmp_path / "double")
    assert double["bytes_up"] == 2 * single["bytes_up"]


def test_an_unknown_device_is_refused_before_round_0(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="device is 'abacus', but cannot be used"):
        run(small(device="abacus"), tmp_path)
    assert not (tmp_path / "summary.json").exists()


@pytest.mark.parametrize("clients", [6, MOST_CLIENTS + 20])
def test_the_partition_is_listed_client_by_client(clients: int) -> None:
    tree = {"problem": {"name": "digits", "clients": clients, "partition": "shards"}}
    problem = resolve(tree).load_problem()
    shown = partition_of(problem)
    assert shown is not None
    listed = min(clients, MOST_CLIENTS)
    assert shown["clients"] == clients
    assert len(shown["sizes"]) == len(shown["counts"]) == listed
    for client in range(listed):
        _, targets = problem.data.train(client)
        own = [int((targets == label).sum()) for label in shown["labels"]]
        assert shown["counts"][client] == own
    assert sum(shown["total_counts"]) == shown["total_size"] == len(problem.data.samples)


def test_a_folder_that_cannot_be_written_is_refused_before_anything(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ConfigError, match=r"--out is .*, but cannot be written"):
        run(small(), blocked / "run")


def test_a_directory_in_which_a_run_goes_on_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedadmm.study.single_run._PATIENCE", 0.1)
    with pytest.raises(KeyboardInterrupt):
        run(small(checkpoint={"every": 1}), tmp_path, callbacks=[interrupt_in_round(2)])
    before = records(tmp_path)
    with locked(tmp_path, 0.0), pytest.raises(StateError, match="in use by process"):
        run(small(checkpoint={"every": 1}), tmp_path, resume=True)
    assert records(tmp_path) == before
    assert run(small(checkpoint={"every": 1}), tmp_path, resume=True)["code"] == "completed"


def test_a_summary_is_there_from_the_first_second_on(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    final = run(small(), tmp_path, label="mine", callbacks=[lambda _: seen.append(read(tmp_path))])
    assert {one["code"] for one in seen} == {"running"}
    assert [one["rounds"] for one in seen] == [0, 0, 0, 0]
    known = ("label", "algorithm", "method", "seed", "target", "fedadmm_version")
    for key in known:
        assert {json.dumps(one[key]) for one in seen} == {json.dumps(final[key])}
    assert set(seen[0]) == set(final)
    assert RunDir(tmp_path).finished() == final


def read(directory: Path) -> dict[str, Any]:
    assert RunDir(directory).finished() is None
    return RunDir(directory).summary()


def test_a_killed_run_of_this_version_and_the_one_before_go_on(tmp_path: Path) -> None:
    whole = run(small(rounds=6), tmp_path / "whole")
    for name in ("new", "old"):
        with pytest.raises(KeyboardInterrupt):
            run(small(rounds=6), tmp_path / name, callbacks=[interrupt_in_round(4)])
    running = RunDir(tmp_path / "new").summary() | {"code": "running"}
    (tmp_path / "new/summary.json").write_text(json.dumps(running))
    (tmp_path / "old/summary.json").unlink()
    for name in ("new", "old"):
        resumed = run(small(rounds=6), tmp_path / name, resume=True)
        assert resumed["params_sha256"] == whole["params_sha256"]


def test_a_run_that_fails_on_the_way_says_so_and_goes_on(tmp_path: Path) -> None:
    def fail(report: Any) -> None:
        if report.record["round"] == 3:
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        run(small(rounds=6), tmp_path / "a", callbacks=[fail])
    summary = RunDir(tmp_path / "a").summary()
    assert (summary["code"], summary["status"]) == ("failed", "failed: no space left")
    resumed = run(small(rounds=6), tmp_path / "a", resume=True)
    assert resumed["params_sha256"] == run(small(rounds=6), tmp_path / "b")["params_sha256"]


@dataclass(frozen=True)
class Follower(fa.Callback):
    """Remembers what it was told, as `test_running:Follower`."""

    told: ClassVar[list[str]] = []

    def begin(self, run: Any) -> None:
        self.told.append(f"from {run.state.round + 1}")

    def end(self, summary: Any, live: Any) -> None:
        self.told.append(summary["code"])


@dataclass(frozen=True)
class Missing(Follower):
    """One whose package is not installed."""

    def begin(self, run: Any) -> None:
        raise ConfigError("callbacks names 'missing', which is not installed")


REFUSED: dict[str, dict[str, Any]] = {
    "a callback": {"callbacks": [{"name": f"{__name__}:{one}"} for one in ("Follower", "Missing")]},
    "an engine": {
        "callbacks": [{"name": f"{__name__}:Follower"}],
        "engine": {"name": "vectorised"},
    },
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("done", [0, 4])
def test_a_refused_run_leaves_its_folder_as_it_was(case: str, done: int, tmp_path: Path) -> None:
    """A new one empty, and a finished one finished; callbacks that began hear of it."""
    solver = {"local": {"solver": {"name": "lbfgs"}}}  # which does not stack
    if done:
        run(small(**solver), tmp_path)
    names = ("config.toml", "metrics.jsonl", "summary.json", "model.safetensors")
    before = {name: (tmp_path / name).read_bytes() for name in names if done}
    Follower.told.clear()
    with pytest.raises(ConfigError if case == "a callback" else CompatibilityError):
        run(small(rounds=6, **solver, **REFUSED[case]), tmp_path, resume=True)
    assert Follower.told == [f"from {done + 1}", "failed"]
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name in names}
    assert found == before
    if done:
        assert run(small(rounds=6, **solver), tmp_path, resume=True)["rounds"] == 6


def test_a_resumed_run_that_is_interrupted_at_once_still_knows_its_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = run(small(), tmp_path)["best"]
    assert best == RunDir(tmp_path).best()

    def press(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedadmm.run.simulate.make_job", press)
    with pytest.raises(KeyboardInterrupt):
        run(small(rounds=6), tmp_path, resume=True)
    summary = RunDir(tmp_path).summary()
    assert (summary["code"], summary["best"]) == ("interrupted", best)
    (tmp_path / "summary.json").unlink()  # as when it was killed: the model tells it itself
    assert RunDir(tmp_path).best() == best


def test_news_are_the_records_since_the_last_look(tmp_path: Path) -> None:
    folder, reader = RunDir(tmp_path), RunDir(tmp_path)
    assert reader.news() == []
    folder.append(made(1))
    folder.append(made(2, loss=float("nan")))
    assert reader.news() == [made(1), made(2, loss=None)]
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"round": 3, "metrics": {"lo')
        stream.flush()
        assert reader.news() == []
        stream.write('ss": 1.0}}\n')
    assert reader.news() == [made(3, loss=1.0)]
    folder.keep(1)
    assert reader.news() == [made(1)]


FEDDR = {"algorithm": {"name": "feddr", "eta": 0.5, "init": "prox"}}


@pytest.mark.parametrize("kept", [True, False], ids=["its checkpoint", "no checkpoint"])
def test_an_initial_round_is_round_0_and_written_once(kept: bool, tmp_path: Path) -> None:
    """Killed in round 1, or before the checkpoint of the initial round was whole."""
    chosen = small(**FEDDR)
    whole = run(chosen, tmp_path / "whole")
    written = records(tmp_path / "whole")
    assert [record["round"] for record in written] == list(range(chosen.rounds + 1))
    assert written[0]["cohort"]["participants"] == chosen.load_problem().num_clients
    assert "loss" not in written[0]["metrics"]
    assert whole["rounds"] == chosen.rounds
    assert whole["bytes_up"] == sum(record["traffic"]["bytes_up"] for record in written)
    broken = tmp_path / "broken"
    with pytest.raises(KeyboardInterrupt):
        run(chosen, broken, callbacks=[interrupt_in_round(1)])
    assert RunDir(broken).summary()["status"] == "interrupted after round 1, 0 rounds are kept"
    if not kept:
        shutil.rmtree(broken / "checkpoint")
    again = run(chosen, broken, resume=True)
    assert records(broken) == written
    assert again["params_sha256"] == whole["params_sha256"]
