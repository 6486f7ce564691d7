"""`python -m studies.participation`: run the study, or go on with it, and write what it found.

    python -m studies.participation --scale quick
    python -m studies.participation --final --scale quick

All options are those of `fedadmm reproduce`, which runs the recipe and finds finished cells again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedadmm.cli import app
from fedadmm.core.config_tree import from_config
from fedadmm.study import config, formatting
from fedadmm.study.run_dir import create, write_json, write_text
from studies.participation import text
from studies.participation.findings import RowOutcome, Verdict, findings, sensitivities, transfers
from studies.participation.page import page
from studies.participation.recipe import FINAL, STUDY, places, read, recipe


def found_out(results: dict[str, Any]) -> dict[str, Any]:
    """The study's findings, from what `fedadmm reproduce` wrote into results.json."""
    study = read(STUDY)
    where = places(study)
    outcomes = []
    for cell in results["table"]:
        setting, row = cell["name"].split("/")
        rounds = {int(seed): one for seed, one in cell["by_seed"]["rounds_to_target"].items()}
        if rounds:
            outcomes.append(RowOutcome(*where[setting], row, cell["title"], rounds, cell["rounds"]))
    search = results["search"] or {"tried": [], "chosen": {}}
    tried = search["tried"]
    return findings(from_config(Verdict, study["verdict"], "verdict"), outcomes) | {
        "transfers": [one._asdict() for one in transfers(tried, search["chosen"])],
        "sensitivities": [one._asdict() for one in sensitivities(tried)],
    }


def write(folder: Path) -> None:
    """Write findings.json, findings.md, findings.html and the tables beside results.json."""
    results = json.loads((folder / "results.json").read_text("utf-8"))
    found = found_out(results)
    write_json(folder / "findings.json", found)
    lines = [f"# {results['title']}", *text.markdown(found)]
    write_text(folder / "findings.md", "\n".join(lines) + "\n")
    write_text(folder / "findings.html", page(found, results["title"], results["notes"]))
    numbered = enumerate(text.tables(found), 1)
    formatting.write_tables(folder, {f"findings-{number}": table for number, table in numbered})


def main(arguments: Sequence[str]) -> int:
    """Run what is missing; the exit code is that of `fedadmm reproduce`."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.participation",
        description="Run the study of few participants, or go on with it, and write what it found.",
        epilog="Other options are those of fedadmm reproduce.",
        allow_abbrev=False,
    )
    parser.add_argument("--final", action="store_true", help="eighty rounds instead of a target")
    parser.add_argument("--scale", default="quick")
    parser.add_argument("--out", type=Path)
    own, others = parser.parse_known_args(arguments)
    name = FINAL if own.final else STUDY
    folder = own.out or Path("runs/reproduce") / f"{name}-{own.scale}"
    create(folder)
    path = folder / f"{name}.toml"
    write_text(path, config.write(recipe(name)))
    words = ["reproduce", str(path), "--scale", own.scale, "--out", str(folder), *others]
    try:
        app(words)
    except SystemExit as ended:
        if ended.code:
            return int(ended.code)
    if name == STUDY:
        write(folder)
        sys.stderr.write(f"findings {folder / 'findings.md'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
