"""Options that several commands share, and what they do to a configuration."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import click
import typer
from typer.core import TyperCommand

from fedadmm.cli.group import again, only_one_document

if TYPE_CHECKING:
    from collections.abc import Callable

    from fedadmm.core.config_tree import Tree
    from fedadmm.study.spec import Override, Study

Item = TypeVar("Item")

Source = Annotated[
    str | None,
    typer.Argument(
        metavar="CONFIG",
        help="Name a preset or a problem, or give a TOML file or a run directory.",
        show_default=False,
    ),
]
Algorithm = Annotated[
    str | None,
    typer.Option("--algorithm", help="Train with this method; `fedadmm algorithms` lists them."),
]
Rounds = Annotated[int | None, typer.Option("--rounds", help="Stop after this many rounds.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Draw everything random from this seed.")]
Seeds = Annotated[
    str | None,
    typer.Option("--seeds", "--seed", help="Run once with each of these seeds, as in 0,1,2."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Write into this folder; by default into a new one under runs/."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what is in the folder.")]
CheckpointEvery = Annotated[
    int | None,
    typer.Option("--checkpoint-every", help="Save every N rounds; 0 saves only on interruption."),
]
Engine = Annotated[
    str | None,
    typer.Option(
        "--engine", help="Choose how clients are run: auto, sequential, vectorised, workers, ray …"
    ),
]
Workers = Annotated[
    int | None, typer.Option("--workers", help="Let the engine use this many worker processes.")
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a key, as in algorithm.rho=0.1."),
]
Trackers = Annotated[
    list[str] | None,
    typer.Option(
        "--tracker", help="Also record in tensorboard, mlflow, wandb or package.module:Name."
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", min=1, help="Run this many at the same time; by default one per core."),
]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        callback=only_one_document,
        help="Print one JSON document on standard output, and nothing else there.",
    ),
]
PrintConfig = Annotated[
    bool, typer.Option("--print-config", help="Print the complete configuration and stop.")
]
Csv = Annotated[
    list[str] | None,
    typer.Option(
        "--csv",
        metavar="FILE…",
        help="Train on your own CSV files: one per client, or one with --client.",
    ),
]
TargetColumn = Annotated[
    str | None, typer.Option("--target", metavar="COLUMN", help="Predict this column of --csv.")
]
ClientColumn = Annotated[
    str | None,
    typer.Option("--client", metavar="COLUMN", help="Tell clients apart by this column of --csv."),
]
Report = Annotated[bool, typer.Option("--report/--no-report", help="Write report.html.")]


_KEYS = {
    "algorithm": "algorithm.name",
    "rounds": "rounds",
    "seed": "seed",
    "checkpoint_every": "checkpoint.every",
    "engine": "engine.name",
    "workers": "engine.workers",
}
"""Option -> the key of a configuration that it is short for."""


def settings(**others: Any) -> list[Override]:
    """What this command line sets in a configuration: its options, then every --set."""
    from fedadmm.study.config import assignment
    from fedadmm.study.methods import own_engine

    given = click.get_current_context().params
    engine = own_engine(given.get("algorithm")) if given.get("engine") is None else {}
    shortcuts: dict[str, Any] = {key: given.get(option) for option, key in _KEYS.items()}
    return [
        *((f"engine.{key}", value) for key, value in engine.items()),
        *(
            (key, list(value) if isinstance(value, tuple) else value)
            for key, value in (shortcuts | others).items()
            if value is not None and value != ()  # click has a tuple for what may be repeated
        ),
        *map(assignment, given["sets"] or ()),
    ]


def apply(tree: Tree) -> None:
    """Write what this command line sets into the configuration of one run."""
    from fedadmm.study.config import assign

    for key, value in settings():
        assign(tree, key, value)
    for name in click.get_current_context().params.get("trackers") or ():
        present = tree.get("callbacks", [])
        if {"name": name} not in present:  # a run that is resumed has it already
            tree["callbacks"] = [*present, {"name": name}]


def listed(text: str | None, option: str, kind: Callable[[str], Item], allowed: str) -> list[Item]:
    """The values of `a,b,c`; none where the option is not given."""
    if text is None:
        return []
    try:
        words = [word.strip() for word in text.split(",")]
        if all(words):
            return [kind(word) for word in words]
    except ValueError:
        pass
    raise typer.BadParameter(f"{option}: got {text!r}, expected {allowed}")


def seed_list(text: str | None) -> list[int] | None:
    """The seeds of `0,1,2`, or of `3`, which means the single seed 3."""
    return listed(text, "--seeds", int, "whole numbers such as 0,1,2") or None


def output_folder(out: Path | None, base: str, resume: bool) -> Path:
    """The folder to write: the given one, else a new one under runs/, or the last to go on with."""
    from fedadmm.core import atomic_files

    if out is not None:
        return out
    taken = 0
    while _numbered(base, taken + 1).exists():
        taken += 1
    while taken and atomic_files.is_abandoned(_numbered(base, taken)):  # by a run that was refused
        taken -= 1
    if resume and taken == 0:
        raise typer.BadParameter(
            f"--resume finds no folder {_numbered(base, 1)}; name one by --out"
        )
    return _numbered(base, taken if resume else taken + 1)


def _numbered(base: str, number: int) -> Path:
    return Path("runs") / (base if number == 1 else f"{base}-{number}")


def processes(jobs: int | None, study: Study) -> int:
    """Number of parallel runs: one per core, unless the runs are to use several cores themselves.

    Parallel runs use one thread each where the number of threads is "auto".  The engine "auto" gets
    one core if there are at least as many runs as cores.
    """
    from fedadmm.run.engines.auto import Auto
    from fedadmm.run.engines.workers import usable_cores

    if jobs is not None:
        return jobs
    cores = usable_cores()
    many = study.runs() >= cores
    for run in (cell.run.resolve() for cell in study.cells):
        threads = 1 if run.threads == "auto" else run.threads
        if not run.engine.uses_one_core(threads) and not (isinstance(run.engine, Auto) and many):
            return 1
    return cores


class TakesFiles(TyperCommand):
    """A command whose --csv takes all words up to the next option, as a shell writes site*.csv."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Say --csv before each of its files."""
        words: list[str] = []
        taking = False
        for word in args:
            if word.startswith("-"):
                taking = word == "--csv"
                words += [] if taking else [word]
            else:
                words += ["--csv", word] if taking else [word]
        if args[-1:] == ["--csv"]:
            words.append("--csv")  # click says that its value is missing
        return super().parse_args(ctx, words)


def begin(
    source: str | None, out: Path | None = None, file: str = "", resume: bool = False
) -> Tree:
    """Where a run or a study begins; --csv puts its table in the place of the problem."""
    from fedadmm.study import config

    given = click.get_current_context().params
    files, columns = given["csv"], {key: given[key] for key in ("target", "client")}
    if not files:
        for key, column in columns.items():
            if column is not None:
                raise typer.BadParameter(
                    f"--{key} is {column!r}, a column of --csv FILE …, but --csv is missing"
                )
        return _begin(source, out, file, resume)
    if columns["target"] is None:
        raise typer.BadParameter("--target is missing, expected the column to predict")
    tree = config.of_problem("table") if source is None else config.read(source)
    table = {"name": "table", "path": list(files), "preparation": "from-sums"}
    table["weights"] = "samples"  # a site counts by its rows, as in the estimator
    tree["problem"] = table | {key: name for key, name in columns.items() if name is not None}
    return tree


def _begin(source: str | None, out: Path | None, file: str, resume: bool) -> Tree:
    """What CONFIG says, or `file` in the folder --out, or the problem that a --set names."""
    from fedadmm.data import problems
    from fedadmm.study import config

    if source is not None:
        return config.read(source)
    if out is not None and (out / file).is_file():
        found = config.read(str(out / file))
        config.reject_code(out / file, found)
        return found
    sets = click.get_current_context().params["sets"] or ()
    named = dict(map(config.assignment, sets)).get("problem.name")
    if named is not None and not resume:
        known = problems.canonical(str(named)) in problems.names()
        return config.of_problem(str(named)) if known else {}  # --set puts the name in
    if out is not None:
        raise typer.BadParameter(
            f"--out is '{out}', where there is nothing to go on with (no {file}); name a CONFIG to "
            "begin, or an --out that holds one"
        )
    if resume:
        raise typer.BadParameter("--resume needs the folder to go on with: --out FOLDER, or CONFIG")
    example = shlex.join(again(source="quickstart"))
    raise typer.BadParameter(
        "CONFIG: got nothing, expected a preset, a problem, a file or --out FOLDER; "
        f"for example: {example}"
    )
