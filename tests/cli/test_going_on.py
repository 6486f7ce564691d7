"""The printed command that goes on is the command that was given, every option of it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from fedadmm.cli import app
from support.commands import call, write_small

INTERRUPTER = "support.commands:Interrupter"
SHARED = (
    *("--checkpoint-every", "2", "--engine", "workers", "--workers", "1"),
    *("--set", "engine.timeout=600", "--set", f"callbacks=[{{name='{INTERRUPTER}'}}]"),
)
COMMANDS: dict[str, tuple[str, ...]] = {
    "run": (
        *(
            "CONFIG",
            "--algorithm",
            "fedprox",
            "--rounds",
            "6",
            "--seed",
            "3",
            "--set",
            "device=cpu",
        ),
        *("--set", "precision=float64", "--tracker", INTERRUPTER, "--no-report", "--json", *SHARED),
    ),
    "compare": (
        *(
            "CONFIG",
            "--algorithms",
            "fedavg,feddr",
            "--reference",
            "fedavg",
            "--rounds",
            "6",
            "--seeds",
            "4,5",
        ),
        *(
            "--set",
            "device=cpu",
            "--set",
            "precision=float64",
            "--jobs",
            "1",
            "--no-report",
            "--json",
        ),
        *SHARED,
    ),
    "sweep": (
        *("CONFIG", "--grid", "algorithm.rho=0.5,1", "--grid", "local.solver.lr=0.1,0.2"),
        *("--list", "sampler.size=1,2", "--algorithm", "fedadmm", "--rounds", "6"),
        *("--seeds", "0,1", "--fresh", "--jobs", "1", "--no-report", "--json", *SHARED),
    ),
    "reproduce": (
        *("note-identity", "--scale", "smoke", "--seeds", "2", "--cells", "*/fedpd"),
        *("--cells", "*/feddyn", "--no-search", "--jobs", "1", "--json"),
    ),
}


def parsed(command: str, arguments: list[str]) -> dict[str, Any]:
    """Every parameter of a command line, as the command gets it."""
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    with group.commands[command].make_context(command, list(arguments)) as context:
        return dict(context.params)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_on_the_command_that_goes_on(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, out = write_small(tmp_path / "a file.toml"), tmp_path / "out"
    given = [str(config) if word == "CONFIG" else word for word in COMMANDS[command]]
    given += ["--out", str(out)]
    if command == "reproduce":  # its recipes have no callbacks

        def interrupted(*ignored: object, **also: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("fedadmm.study.reproduce.run_study", interrupted)
    result = call(command, *given)
    assert result.exit_code == 130, result.output
    assert result.stdout == ""
    printed = shlex.split(result.stderr.partition("go on with: ")[2])
    assert printed[:2] == ["fedadmm", command]
    before, after = parsed(command, given), parsed(command, printed[2:])
    changed = {} if command == "reproduce" else {"resume": True}
    assert after == before | changed
    options = typer.main.get_command(app).commands[command].params  # type: ignore[attr-defined]
    unused = {"--print-config", "--draw-only", "--profile"}
    unused |= {"--from-round-0"}  # it gives up what there is to go on with
    unused |= {"--csv", "--target", "--client"}  # they stand in the place of CONFIG
    forgotten = {one.opts[0] for one in options if one.opts[0].startswith("--")} - set(given)
    negated = {one.opts[0] for one in options if set(one.secondary_opts) & set(given)}
    assert forgotten - negated - unused - {"--resume", "--help"} == set()


def test_a_run_without_a_folder_goes_on_in_the_one_that_it_got(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_small(tmp_path / "small.toml", callbacks=[{"name": INTERRUPTER}])
    result = call("run", "small.toml", "--no-report")
    command = "fedadmm run small.toml --out runs/small-fedadmm-seed0 --resume --no-report"
    assert result.stderr.endswith(f" rounds are kept; go on with: {command}\n")
    resumed = call(*command.split()[1:], "--set", "callbacks=[]")
    assert resumed.exit_code == 0, resumed.stderr
    assert "completed all 4 rounds" in resumed.stdout
