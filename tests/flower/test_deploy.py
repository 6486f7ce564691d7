"""Keys, projects, configurations: everything about a deployment that needs no process."""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import socket
import ssl
import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import fedadmm as fa
from fedadmm.cli import app
from fedadmm.core import atomic_files, codec
from fedadmm.core.errors import ConfigError, EngineError, StateError
from fedadmm.core.privacy import composed_epsilon
from fedadmm.flower.configured import Deployment, federation, sites
from fedadmm.flower.deploy import processes
from fedadmm.flower.deploy.keys import make_certificates, make_node_key
from fedadmm.flower.deploy.local_federation import Follower, compare, run_locally
from fedadmm.flower.deploy.network import LocalNetwork
from fedadmm.flower.deploy.project import Noise, write_project
from fedadmm.flower.federation import read_sites
from fedadmm.flower.server.run_recorder import RunRecorder
from fedadmm.flower.site.policy import read_policy
from fedadmm.study import config as configs, run_dir as directory
from fedadmm.study.benefit import SiteBenefit
from fedadmm.study.config import resolve
from fedadmm.study.run_dir import RunDir
from fedadmm.study.single_run import run as simulated


def test_private_files_are_private(tmp_path):
    files = make_certificates(tmp_path, ["127.0.0.1", "example.org"])
    make_node_key(tmp_path / "node")
    for path in (files.key, tmp_path / "node"):
        assert path.stat().st_mode & 0o777 == 0o600
    context = ssl.create_default_context(cafile=str(files.authority))
    context.load_cert_chain(files.certificate, files.key)
    names = ssl._ssl._test_decode_cert(str(files.certificate))["subjectAltName"]
    assert names == (("IP Address", "127.0.0.1"), ("DNS", "example.org"))


def test_a_project_has_everything_for_every_machine(tmp_path):
    done = CliRunner().invoke(
        app, ["deploy", "init", str(tmp_path / "p"), "--clients", "3", "--host", "fl.org", "--json"]
    )
    assert done.exit_code == 0, done.output
    made = json.loads(done.stdout)
    assert len(made["sites"]) == 3
    commands = (tmp_path / "p" / "COMMANDS.md").read_text()
    for text in ("--enable-supernode-auth", "--superlink fl.org:", "client-2.pub", "--stream"):
        assert text in commands
    keys = {path.name for path in (tmp_path / "p" / "server" / "keys").iterdir()}
    ours = {"ca.crt", "server.crt", "server.key", "operator", "operator.pub"}
    assert keys == ours | {f"client-{i}.pub" for i in range(3)}
    for site in made["sites"]:
        names = {path.name for path in (tmp_path / "p").joinpath(site).iterdir()}
        assert names == {"node-key", "ca.crt", "site.toml", "identity", "peers.json"}
    again = CliRunner().invoke(app, ["deploy", "init", str(tmp_path / "p")])
    assert again.exit_code == 2


def test_a_project_gains_a_site_and_loses_one(tmp_path):
    """The folder, the key and the number of the new one; and for both the command that does it."""
    app_file = write_project(tmp_path / "p", 3, "fl.org", rounds=7, features=5).app
    runner, before = CliRunner(), app_file.read_text()
    done = runner.invoke(app, ["deploy", "add-site", str(tmp_path / "p"), "--json"])
    assert done.exit_code == 0, done.output
    made = json.loads(done.stdout)
    site, keys = tmp_path / "p" / "sites" / "client-3", tmp_path / "p" / "server" / "keys"
    assert made["site"] == str(site)
    old = tmp_path / "p" / "sites" / "client-0"
    assert {path.name for path in site.iterdir()} == {path.name for path in old.iterdir()}
    peers = json.loads((site / "peers.json").read_text())
    assert peers["3"] == made["identity"]
    assert sorted(peers) == ["0", "1", "2", "3"]
    assert json.loads((old / "peers.json").read_text()) == peers
    assert (site / "ca.crt").read_bytes() == (old / "ca.crt").read_bytes()
    assert (site / "site.toml").read_text() == (old / "site.toml").read_text()
    assert (site.stat().st_mode & 0o777, (keys / "client-3.pub").is_file()) == (0o700, True)
    assert app_file.read_text() == before  # data are edited, and no code
    assert list(federation_of(app_file).names) == [f"client-{client}" for client in range(4)]
    assert "register keys/client-3.pub federation --name client-3" in made["commands"][0]
    assert made["commands"][1:3] == ["flwr list federation", "flwr stop RUN federation"]
    assert "accept-sites=true" in made["commands"][3]
    gone = runner.invoke(app, ["deploy", "remove-site", str(tmp_path / "p"), "1"])
    assert "flwr supernode unregister" in gone.stdout
    assert federation_of(app_file).members == [0, 2, 3]
    assert federation_of(app_file).clients == 4
    assert app_file.read_text() == before
    wrong = runner.invoke(app, ["deploy", "remove-site", str(tmp_path / "p"), "4"])
    assert wrong.exit_code == 2
    assert "client: got 4, expected" in wrong.output
    assert runner.invoke(app, ["deploy", "add-site", str(old)]).exit_code == 2


def federation_of(app_file):
    """The federation that a project's app makes."""
    names: dict = {"__name__": "app", "__file__": str(app_file)}
    exec(compile(app_file.read_text(), "app.py", "exec"), names)
    return names["federation"]


def test_an_identity_that_another_site_passed_on_is_added(tmp_path):
    site, key = tmp_path / "site", "ab" * 32
    words = ["deploy", "identity", str(site), "--peer"]
    done = CliRunner().invoke(app, [*words, f"3={key}"])
    assert done.exit_code == 0, done.output
    assert json.loads((site / "peers.json").read_text()) == {"3": key}
    for wrong in ("3=ab", "x=" + key, "3=" + "cd" * 32):  # the last one would replace an identity
        assert CliRunner().invoke(app, [*words, wrong]).exit_code == 2
    assert json.loads((site / "peers.json").read_text()) == {"3": key}


@pytest.mark.parametrize(
    "text", ["", "site = 3", "[[site]]\nname = 3", '[[site]]\nnam = "a"', '[[other]]\nname = "a"']
)
def test_a_list_of_sites_that_cannot_be_understood_is_refused(text, tmp_path):
    path = tmp_path / "sites.toml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        read_sites(path)


@pytest.mark.parametrize("samples", [[100], [98, 230, 104, 160], [21], [40, 7]])
def test_the_noise_of_a_project_lasts_for_all_rounds_of_every_site(samples):
    """Composed again for each site, with an evaluation every ten rounds."""
    noise = Noise.fit(8.0, 20, samples)

    def epsilon(multiplier: float, rounds: int, steps: int) -> float:
        made = {(multiplier, 1 / steps): rounds * 5 * steps}
        return composed_epsilon({**made, (noise.evaluation, 1.0): math.ceil(rounds / 10)}, 1e-5)

    less = []
    for count in samples:
        steps, lasts = math.ceil(count / 20), noise.rounds[count]
        assert lasts >= 20
        assert epsilon(noise.multiplier, lasts, steps) <= 8.0
        assert epsilon(noise.multiplier, lasts + 1, steps) > 8.0
        less.append(epsilon(0.9 * noise.multiplier, 20, steps))
    assert max(less) > 8.0
    # two evaluations consume a tenth of what they would alone: 1 / s^2 adds up
    assert composed_epsilon({(noise.evaluation, 1.0): 20}, 1e-5) == pytest.approx(8.0, rel=0.05)


def test_a_project_says_how_many_rounds_each_site_can_afford(tmp_path):
    words = ["--epsilon", "8", "--rounds", "20", "--samples", "98,230", "--json"]
    done = CliRunner().invoke(app, ["deploy", "init", str(tmp_path / "p"), *words])
    assert done.exit_code == 0, done.output
    made = json.loads(done.stdout)
    solver = federation_of(Path(made["app"])).experiment.local.solver
    assert isinstance(solver, fa.DPSGD)
    assert solver.multiplier == made["noise"]["multiplier"] > 1.0
    assert sorted(made["noise"]["rounds"]) == ["230", "98"]
    policy = read_policy(tmp_path / "p" / "sites" / "client-0" / "site.toml")
    assert policy.epsilon == 8.0
    assert policy.evaluation_noise == made["noise"]["evaluation"] > 1.0
    wrong = CliRunner().invoke(app, ["deploy", "init", str(tmp_path / "q"), "--samples", "many"])
    assert wrong.exit_code == 2


@pytest.mark.parametrize(
    ("epsilon", "chosen", "solver", "aggregate"),
    [
        (None, [], fa.SGD, fa.Sum),
        (8.0, [], fa.DPSGD, fa.Sum),
        (None, ["# NETWORK"], fa.SGD, fa.MaskedSum),
        (8.0, ["# NETWORK"], fa.DPSGD, fa.MaskedSum),
    ],
)
def test_the_app_to_start_from_runs(tmp_path, epsilon, chosen, solver, aggregate):
    made = write_project(tmp_path / "p", 3, "fl.org", rounds=3, features=4, epsilon=epsilon)
    text = made.app.read_text()
    for option in chosen:  # as whoever edits it would take one of its comments
        assert text.count(option) == 1
        text = text.replace(option, option[2:])
    table = torch.cat([torch.randn(20, 4), torch.ones(20, 1)], 1).numpy()
    lines = ["a,b,c,d,label", *(",".join(map(str, row)) for row in table)]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    names: dict = {"__name__": "app", "__file__": str(made.app)}
    exec(compile(text, "app.py", "exec"), names)

    context = SimpleNamespace(node_config={"data": str(tmp_path / "rows.csv")})
    objective = names["load"](context)
    assert objective.num_parameters == (4 + 1) * 2
    job = names["federation"].server_job()
    assert job.initial.shape == (10,)
    assert (type(job.solver), type(job.aggregator)) == (solver, aggregate)


def test_tables_of_a_configuration_are_a_site_each(tmp_path, monkeypatch):
    """Also by a pattern and a relative path."""
    for site in ("north", "south", "west"):
        (tmp_path / f"{site}.csv").write_text("a,y\n1,0\n2,1\n3,0\n4,1\n5,0\n")
    table = {"name": "table", "path": "*.csv", "target": "y", "preparation": "from-sums"}
    (tmp_path / "config.toml").write_text(configs.write({"rounds": 1, "problem": table}))
    monkeypatch.chdir(tmp_path)
    given = []

    def started(chosen, folder, deployment, **_):
        given.append(deployment.clients)
        raise ConfigError("far enough")

    monkeypatch.setattr("fedadmm.flower.deploy.local_federation.run_locally", started)
    for words in (["config.toml"], ["--csv", "*.csv", "--target", "y"]):
        CliRunner().invoke(app, ["deploy", "local", *words, "--out", "run"])
    assert given == [3, 3]


def test_a_configuration_becomes_a_federation():
    table = {"rounds": 4, "problem": {"name": "digits", "clients": 5}}
    config = resolve(table | {"output": {"name": "averaged"}})
    made = federation(config, Deployment(5, named=True))
    assert made.clients == 5
    assert made.names[0] == "client-0"
    assert made.experiment.rounds == 4
    assert made.experiment.output == fa.outputs.Averaged()
    assert made.server_job().problem.num_clients == 5


def test_a_deployed_summary_tells_the_fitted_penalty(tmp_path, monkeypatch):
    """0.25 over the learning rate and the mean steps of the clients, as in a simulation."""

    class Network:
        def __init__(self, *given, **options):
            assert RunDir(tmp_path / "run").summary()["fitted"]

        def __enter__(self):
            return self

        __exit__ = start = wait = lambda self, *given: None

        def run(self, app, given):
            RunDir(Path(given["run-dir"])).close(
                {"code": "completed", "status": "", "params_sha256": ""}
                | {"network": {}, "best": {}, "fitted": {}}
            )

    monkeypatch.setattr("fedadmm.flower.deploy.local_federation.LocalNetwork", Network)
    config = resolve(
        {
            "problem": {"name": "digits", "clients": 5, "partition": "shards"},
            "algorithm": {"name": "aligned-admm", "rho": {"name": "per-work"}},
            "local": {
                "solver": {"name": "sgd", "lr": 0.1, "batch_size": 10},
                "stop": {"name": "epochs", "epochs": 5},
            },
        }
    )
    options = {"tls": False, "resume": False, "watch": print}
    told = run_locally(config, tmp_path / "run", Deployment(5), **options)
    sizes = [one.num_samples for one in config.load_problem().clients]
    steps = sum(5 * -(-size // 10) for size in sizes) / 5
    assert told["fitted"] == {"rho": pytest.approx(0.25 / (0.1 * steps))}
    assert RunDir(tmp_path / "run").summary() == told
    assert federation(config, Deployment(5)).experiment.algorithm.rho == told["fitted"]["rho"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tolerance": 0.1}, "tolerance: got 0.1"),
        ({"evaluate": {"target": "local"}}, "evaluate.target"),
        ({"evaluate": {"train": True}}, "evaluate.train: got true"),
        ({"callbacks": [{"name": "diagnostics"}]}, "callbacks: got diagnostics"),
    ],
)
def test_what_a_deployment_cannot_do_is_refused(changes, words):
    config = resolve({"problem": {"name": "digits", "clients": 5}} | changes)
    with pytest.raises(ConfigError, match=words):
        federation(config, Deployment(5))


def test_there_must_be_a_node_for_each_client():
    config = resolve({"problem": {"name": "digits", "clients": 5}})
    with pytest.raises(ConfigError, match="--clients is 4, but the problem has 5"):
        federation(config, Deployment(4))


def test_hospitals_need_no_data_at_the_server(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDADMM_DATA", str(tmp_path))
    for model, size in (("logistic", 14), ("mlp-13-8-2", 13 * 8 + 8 + 8 * 2 + 2)):
        config = resolve({"problem": {"name": "heart-disease", "model": model}})
        assert federation(config, Deployment(4)).server_job().initial.numel() == size


def test_a_hospital_alone_has_the_rows_it_has_among_others(tmp_path):
    from fedadmm.data.loaders.heart import HOSPITALS, read_hospitals, read_site

    paths = {}
    for number, name in enumerate(HOSPITALS):
        generator = torch.Generator().manual_seed(number)
        rows = torch.rand(30, 14, generator=generator)
        rows[:, -1] = (rows[:, -1] > 0.5).float()
        paths[name] = tmp_path / f"{number}.data"
        paths[name].write_text("\n".join(",".join(map(str, row)) for row in rows.tolist()))
    together = read_hospitals(paths, 0.2, 0)
    for number, path in enumerate(paths.values()):
        alone = read_site(path, number, 0.2, 0)
        for mine, all_rows in zip(alone, together, strict=True):
            theirs = all_rows.inputs[torch.from_numpy(all_rows.groups == number)]
            assert torch.equal(mine.inputs, theirs)


def command_lines():
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_bytes().decode("utf-8", "replace")


def test_status_and_stop_of_what_a_crash_left_running(tmp_path):
    folder = tmp_path / "deployment"
    folder.mkdir()
    below = "import subprocess; subprocess.run(['sleep', '301'], start_new_session=True)"
    sleeper = [sys.executable, "-c", below]
    environment = processes.environment(folder)
    group = processes.ProcessTree("superlink", sleeper, tmp_path / "log", environment, tmp_path)
    processes.record(folder, [group])
    while not any("sleep" in line and "301" in line for line in command_lines()):
        time.sleep(0.05)
    runner = CliRunner()
    status = json.loads(runner.invoke(app, ["deploy", "status", str(tmp_path), "--json"]).stdout)
    assert status["processes"] == [{"name": "superlink", "running": True}]
    assert (status["rounds"], status["status"]) == (0, "under way")
    stopped = json.loads(runner.invoke(app, ["deploy", "stop", str(tmp_path), "--json"]).stdout)
    assert stopped == {"ended": ["superlink"]}
    assert group.code() is not None
    assert not any("sleep" in line and "301" in line for line in command_lines())
    status = json.loads(runner.invoke(app, ["deploy", "status", str(tmp_path), "--json"]).stdout)
    assert status["processes"] == [{"name": "superlink", "running": False}]


def test_another_process_with_the_number_of_an_ended_one_is_left_alone(tmp_path):
    """Numbers are used again: whoever has one now, and began at another time, is somebody else."""
    environment = processes.environment(tmp_path)
    group = processes.ProcessTree("x", ["sleep", "301"], tmp_path / "log", environment, tmp_path)
    try:
        for later, same in ((0.0, True), (60.0, False), (-60.0, False)):
            known = group.recorded()
            entry = known._replace(started=known.started + later)._asdict()
            (tmp_path / processes.PROCESSES).write_text(json.dumps([entry]))
            ((_, running),) = processes.recorded(tmp_path)
            assert running is same
    finally:
        group.kill()
    (tmp_path / processes.PROCESSES).write_text(json.dumps([known._asdict()]))
    assert [running for _, running in processes.recorded(tmp_path)] == [False]


@pytest.mark.parametrize(
    "text",
    [
        *("[" * 200_000, "{", "[1]", '[{"name": 1}]', "\xff"),
        '[{"name": "x", "group": 5, "started": "1"}]',
    ],
)
def test_a_damaged_list_of_processes_is_named(text, tmp_path):
    (tmp_path / "deployment").mkdir()
    (tmp_path / "deployment" / processes.PROCESSES).write_text(text, "latin-1")
    for command in ("status", "stop"):
        done = CliRunner().invoke(app, ["deploy", command, str(tmp_path)])
        assert done.exit_code == 2
        assert "processes.json: is damaged" in done.output


def test_status_tells_how_each_site_does(tmp_path, quick):
    """On the server of several machines there are no processes to list, but sites."""
    from .harness import FakeGrid, federation, run_through

    settings = federation(fa.FedADMM(rho=1.0), rounds=4, ledger="none")
    grid = FakeGrid(settings, tmp_path)

    def act(report):
        if report.record["round"] == 2:
            grid.wipe(1)
        grid.offline = {3} if report.record["round"] >= 2 else set()

    written = RunRecorder(tmp_path / "server")
    run_through(settings, grid, tmp_path, lambda report: (written(report), act(report)))
    done = CliRunner().invoke(app, ["deploy", "status", str(tmp_path / "server"), "--json"])
    found = json.loads(done.stdout)
    assert found["processes"] == []
    sites = {site["client"]: site for site in found["sites"]}
    assert [sites[c]["version"] for c in range(4)] == [4, 2, 4, 2]
    assert [sites[c]["last_round"] for c in range(4)] == [4, 2, 4, 2]
    assert [sites[c]["lost"] for c in range(4)] == [False, True, False, False]
    assert sites[1]["refused"] == {"lost": 2}
    assert sites[3]["last_refusal"] == "missing: its node is not online"
    codec.write_json(
        tmp_path / "server" / "waiting.json", {"round": 5, "clients": [1, 3], "at": "now"}
    )
    text = CliRunner().invoke(app, ["deploy", "status", str(tmp_path / "server")]).output
    most = found["influence"]
    assert most["client"] in (0, 2)  # of the last round, in which only they took part
    share = f"client {most['client']}, {100 * most['share']:.0f} % of the last update"
    assert f"the largest influence of one site: {share}" in text
    assert "round 5 waits for client 1, 3 (now)" in text
    heard = sites[1]["last_heard"]
    age = datetime.now(UTC) - datetime.fromisoformat(heard)
    assert timedelta(seconds=-1) <= age < timedelta(minutes=5)
    assert [sites[c]["node"] for c in range(4)] == [1000, 1001, 1002, 1003]
    assert f"client 1 (node 1001); version 2; took part in round 2 ({heard}); lost its state; " in (
        text
    )
    assert "client 0 (node 1000); version 4; took part in round 4 (" in text


OPTIONS = {
    "--tls": lambda asked: asked["tls"],
    "--asynchronous": lambda asked: asked["deployment"].mode == "asynchronous",
    "--no-ledger": lambda asked: asked["deployment"].ledger == "none",
}


@pytest.mark.parametrize("given", [[], ["--tls"], ["--asynchronous"], ["--no-ledger"], [*OPTIONS]])
def test_the_printed_command_resumes_the_same_deployment(given, tmp_path, monkeypatch):
    """What Ctrl-C prints is given back word for word; it must ask for what was asked before."""
    asked = []

    def interrupted(config, out, deployment, **options):
        directory.create(out)
        (out / directory.CONFIG).write_text(configs.write(config.tree))
        asked.append({"config": config, "out": out, "deployment": deployment, **options})
        raise KeyboardInterrupt

    monkeypatch.setattr("fedadmm.flower.deploy.local_federation.run_locally", interrupted)
    base = ["deploy", "local", "quickstart", "--clients", "5", "--rounds", "3"]
    first = CliRunner().invoke(app, [*base, "--out", str(tmp_path / "run"), *given])
    assert first.exit_code == 130
    command = shlex.split(first.output.rpartition("go on with: ")[2])
    assert command[0] == "fedadmm"
    assert CliRunner().invoke(app, command[1:]).exit_code == 130
    before, after = asked
    assert after.pop("resume")
    assert not before.pop("resume")
    for one in (before, after):
        one.pop("watch")
    assert before["config"].tree == after["config"].tree
    assert before["deployment"] == after["deployment"]
    assert {name for name, holds in OPTIONS.items() if holds(after)} == set(given)


def begun(folder: Path, monkeypatch, deployment: Deployment, *, tls: bool = False) -> dict:
    """A local deployment that was interrupted before its first round; its configuration."""

    class Interrupted:
        def __init__(self, *_: object, **__: object) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr("fedadmm.flower.deploy.local_federation.LocalNetwork", Interrupted)
    tree = {"problem": {"name": "digits", "clients": 5}, "algorithm": {"name": "fedavg"}}
    options = {"tls": tls, "resume": False, "watch": print}
    with pytest.raises(KeyboardInterrupt):
        run_locally(resolve(tree), folder, deployment, **options)
    return tree


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("given", [[], ["--rounds", "7"]])
def test_a_resumed_deployment_without_a_configuration_takes_that_of_its_folder(
    given, tmp_path, monkeypatch
):
    folder = tmp_path / "run"
    network = Deployment(5, mode="rounds", ledger="none")
    begun(folder, monkeypatch, network, tls=True)
    asked = []

    def resumed(config, out, deployment, **options):
        asked.append((config, deployment, options["tls"]))
        raise KeyboardInterrupt

    monkeypatch.setattr("fedadmm.flower.deploy.local_federation.run_locally", resumed)
    done = CliRunner().invoke(app, ["deploy", "local", "--resume", "--out", str(folder), *given])
    assert done.exit_code == 130, done.output
    ((config, deployment, tls),) = asked
    assert config.tree["problem"]["name"] == "digits"
    assert config.tree["algorithm"]["name"] == "fedavg"
    assert config.rounds == (7 if given else resolve({"problem": {"name": "digits"}}).rounds)
    assert (deployment.clients, deployment.ledger, tls) == (5, "none", True)


@pytest.mark.parametrize(
    ("changes", "network", "words"),
    [
        ({"algorithm": {"name": "fedprox", "rho": 0.1}}, Deployment(5), "another configuration"),
        ({"seed": 9}, Deployment(5), r"seed \(0 -> 9\)"),
        ({}, Deployment(5, mode="asynchronous"), r"mode \('rounds' -> 'asynchronous'\)"),
        ({}, Deployment(5, ledger="none"), r"ledger \('auto' -> 'none'\)"),
    ],
)
def test_a_deployment_of_another_configuration_is_refused_before_anything_is_written(
    changes, network, words, tmp_path, monkeypatch
):
    folder = tmp_path / "run"
    tree = begun(folder, monkeypatch, Deployment(5))
    before = contents(folder)
    options = {"tls": False, "resume": True, "watch": print}
    with pytest.raises(StateError, match=words):
        run_locally(resolve(tree | changes), folder, network, **options)
    assert contents(folder) == before
    with pytest.raises(KeyboardInterrupt):  # with the same, or more rounds, it goes on
        run_locally(resolve(tree | {"rounds": 3}), folder, Deployment(5), **options)


def test_a_resumed_deployment_first_ends_what_the_last_one_left_running(tmp_path, monkeypatch):
    """A second SuperLink on the same database would lose what the first one knows."""
    folder = tmp_path / "run"
    tree = begun(folder, monkeypatch, Deployment(5))
    left = processes.ProcessTree(
        "superlink", ["sleep", "600"], tmp_path / "log", dict(os.environ), tmp_path
    )
    processes.record(folder / "deployment", [left])
    try:
        options = {"tls": False, "resume": True, "watch": print}
        with pytest.raises(KeyboardInterrupt):  # where the new network would start
            run_locally(resolve(tree), folder, Deployment(5), **options)
        assert not left.running()
    finally:
        left.kill()


def test_a_deployment_that_is_still_watched_is_not_taken_over(tmp_path, monkeypatch):
    """Its processes belong to the command that runs."""
    folder = tmp_path / "run"
    tree = begun(folder, monkeypatch, Deployment(5))
    left = processes.ProcessTree(
        "superlink", ["sleep", "600"], tmp_path / "log", dict(os.environ), tmp_path
    )
    processes.record(folder / "deployment", [left])
    try:
        options = {"tls": False, "resume": True, "watch": print}
        monkeypatch.setattr("fedadmm.flower.deploy.local_federation._PREDECESSOR", 0.2)
        with (
            atomic_files.locked(folder / "deployment", 1.0),
            pytest.raises(StateError, match="is in use by process"),
        ):
            run_locally(resolve(tree), folder, Deployment(5), **options)
        assert left.running()
    finally:
        left.kill()


def test_the_end_says_what_the_federation_was_worth(tmp_path, monkeypatch):
    """A row per site with its interval, as after a simulated run."""
    generator, paths = np.random.default_rng(3), []
    for site in range(3):
        x = generator.normal(size=(40, 2))
        lines = [f"{a:.3f},{b:.3f},{'yes' if a > b else 'no'}" for a, b in x]
        paths.append(str(tmp_path / f"site{site}.csv"))
        Path(paths[-1]).write_text("\n".join(["a,b,y", *lines]) + "\n")
    problem = {"name": "table", "path": paths, "target": "y", "preparation": "from-sums"}
    problem |= {"test_fraction": 0.4, "weights": "samples"}
    tree = {"rounds": 3, "problem": problem, "local": {"solver": {"name": "sgd", "lr": 0.5}}}
    chosen, out = resolve(tree), tmp_path / "run"
    simulated(chosen, out)
    params, apart = RunDir(out).model(last=True).params, sites(chosen)
    tests = [apart.load(chosen.problem, Path(path), i).test for i, path in enumerate(paths)]
    found = compare(chosen, out)
    assert (found.sites, found.sizes) == (["site0", "site1", "site2"], [16, 16, 16])
    shared = [dict(test(params))["test_accuracy"] for test in tests]
    assert found.scores["shared"] == pytest.approx(shared)
    gains, by_site = found.gains["shared"], np.subtract(shared, found.scores["local"])
    assert [gain.mean for gain in gains] == pytest.approx([*by_site, by_site.mean()])
    assert all(gain.low <= gain.mean <= gain.high for gain in gains)
    assert any(gain.low < gain.high for gain in gains)
    summary = {"status": "completed", "code": "completed", "algorithm": "fedadmm", "network": {}}
    summary |= {"last": {}, "rounds": 1, "bytes_up": 0, "target": None, "label": "FedADMM"}
    monkeypatch.setattr(
        "fedadmm.flower.deploy.local_federation.run_locally", lambda *_, **__: summary
    )
    monkeypatch.setattr("fedadmm.cli.deploy._compared", lambda *_: found)
    monkeypatch.setattr("fedadmm.cli.deploy.print_ending", lambda _: None)
    given = ["deploy", "local", "hospitals", "--out", str(tmp_path), "--no-report"]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    for gain in gains:
        assert gain.verdict in done.output
    assert f"{100 * gains[-1].low:+.1f}".replace("-", "−") in done.output
    shown = json.loads(CliRunner().invoke(app, [*given, "--json"]).stdout)["comparison"]
    assert SiteBenefit.read(shown) == found


def test_each_line_of_the_metrics_is_read_once(tmp_path, monkeypatch):
    parsed, shown = [], []

    def loads(line):
        parsed.append(line)
        return json.loads(line)

    monkeypatch.setattr("fedadmm.study.run_dir.json", SimpleNamespace(loads=loads))
    path = tmp_path / directory.METRICS
    follower = Follower(RunDir(tmp_path), lambda record: shown.append(record["round"]))
    follower.look()
    for number in range(1, 6):
        with path.open("a") as stream:
            stream.write(json.dumps({"round": number}) + "\n" + '{"round": ')
        for _ in range(10):
            follower.look()
        path.write_bytes(path.read_bytes().removesuffix(b'{"round": '))
    assert shown == [1, 2, 3, 4, 5]
    assert len(parsed) == 5
    # A resumed run writes the file anew, without the rounds beyond its checkpoint.
    directory.write_text(path, '{"round": 1}\n{"round": 2}\n')
    follower.look()
    with path.open("a") as stream:
        stream.writelines(json.dumps({"round": n}) + "\n" for n in (3, 4, 5, 6))
    follower.look()
    assert shown == [1, 2, 3, 4, 5, 6]


def test_a_folder_without_deployment_is_named(tmp_path):
    done = CliRunner().invoke(app, ["deploy", "status", str(tmp_path)])
    assert done.exit_code == 2
    assert "is no deployment" in done.output


SLOW_TO_END = """
import os, signal, sys, time

def end(*_):
    print("asked")
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.02)
    os._exit(0)

signal.signal(signal.SIGTERM, end)
print("ready")
time.sleep(300)
"""


def said(groups, word):
    deadline = time.monotonic() + 120
    while not all(word in group.tail() for group in groups):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_taking_down_is_not_stopped_half_way(tmp_path, monkeypatch):
    """Whoever asks twice must not leave processes behind: they end only after the second time."""
    again = tmp_path / "again"
    ground = LocalNetwork(tmp_path, [], tls=False)
    groups = [
        ground._launch(name, [sys.executable, "-u", "-c", SLOW_TO_END, str(again)])
        for name in ("first", "second")
    ]
    said(groups, "ready")

    def interrupt(number, frame):
        raise KeyboardInterrupt

    def ask_again():
        said(groups[:1], "asked")
        os.kill(os.getpid(), signal.SIGTERM)
        again.touch()

    asking = threading.Thread(target=ask_again)
    before = signal.signal(signal.SIGTERM, interrupt)
    asking.start()
    try:
        ground.close()
    finally:
        asking.join()
        signal.signal(signal.SIGTERM, before)
        for group in groups:
            group.stop()
    assert [group.running() for group in groups] == [False, False]
    assert processes.recorded(tmp_path) == []


def test_no_proxy_stands_between_processes_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "intranet.example")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    made = processes.environment(tmp_path)
    assert made["no_proxy"] == made["NO_PROXY"] == "intranet.example,127.0.0.1,localhost"
    assert made["HTTPS_PROXY"] == "http://127.0.0.1:9"


def test_ports_are_free_in_a_row_and_no_outgoing_connection_gets_them(monkeypatch):
    """A first choice that somebody listens on is passed over, and so is one beside it."""
    outgoing = Path("/proc/sys/net/ipv4/ip_local_port_range")
    lowest = int(outgoing.read_text().split()[0]) if outgoing.exists() else 32_768
    assert all(port < lowest for port in processes.free_ports(200))
    with socket.socket() as taken:
        port = processes.free_ports(1)[0]
        taken.bind(("127.0.0.1", port))
        drawn = iter([port - 10_000, port - 10_001, port - 10_002])
        monkeypatch.setattr(processes.secrets, "randbelow", lambda _: next(drawn))
        assert processes.free_ports(2) == [port - 2, port - 1]
        monkeypatch.setattr(processes.secrets, "randbelow", lambda _: port - 10_000)
        with pytest.raises(EngineError, match="no 1 free ports in a row between 10000 and 32767"):
            processes.free_ports(1)
