"""Fill the tables of the pages from committed results: `make docs-data`.

A page contains `<!-- data NAME -->` and `<!-- end -->`; what is between them is the table of that
name.  Tables come from `results` of a study, or from a CSV file in this folder whose first line is
a comment with the command that measured it.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

PAGES = [*sorted(HERE.parent.glob("*.md")), ROOT / "README.md"]
BLOCK = re.compile(r"(<!-- data ([\w-]+) -->).*?(<!-- end -->)", re.DOTALL)


def markdown(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as a Markdown table, the first of them as its head."""
    head, *body = [[str(cell) for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def stored(name: str) -> str:
    """Return a table of this folder with its provenance below."""
    comment, *lines = (HERE / f"{name}.csv").read_text("utf-8").splitlines()
    command, _, rest = comment.removeprefix("# ").partition(";")
    return f"{markdown(csv.reader(lines))}\n\n*`{command}`;{rest}*"


def participation_rate() -> str:
    """Return rounds to the target by participation rate, and differences from aligned ADMM."""
    from studies.participation_rate.__main__ import RESULTS, SETTINGS, differences, table

    parts = []
    for name, setting in SETTINGS.items():
        if not (RESULTS / f"{name}.json").exists():
            continue
        parts += [
            f"**{setting.title}: rounds to {setting.target:.0%}**, {len(setting.seeds)} seeds",
            table(name),
            "Aligned ADMM minus the others, paired by seed:",
            differences(name),
        ]
    note = (
        "*Mean ± half of the 95 % t interval; in brackets the seeds that reached the target; a "
        "miss counts as 100 rounds. Learning rates were searched for each cell on validation "
        "samples and seeds that are not reported, with the optimum inside the grid. "
        "`python -m studies.participation_rate`.*"
    )
    return "\n\n".join([*parts, note])


def hospitals() -> str:
    """Return accuracy and loss by hospital with all samples."""
    from studies.hospitals.__main__ import RESULTS, tables

    shown = tables(json.loads(RESULTS.read_text("utf-8")))
    parts = re.split(r"\n(?=all samples, |60 samples)", shown)
    text = "\n\n".join(part.strip() for part in parts if part.startswith("all samples"))
    text = re.sub(r"^all samples, (\w+)$", r"**\1**", text, flags=re.MULTILINE)
    note = (
        "*Mean ± half of the 95 % t interval over ten splits; paired differences in the last two "
        "columns; weights chosen by cross-validation on training samples. "
        "`python -m studies.hospitals`; 60 samples per hospital are in `studies/hospitals`.*"
    )
    return f"{text}\n\n{note}"


def preset_hospitals() -> str:
    """Return accuracy and loss of the preset's models by hospital."""
    from studies.hospitals.preset import RESULTS, table

    shown = table(json.loads(RESULTS.read_text("utf-8"))["splits"])
    note = (
        "*Mean ± half of the 95 % t interval over ten splits; paired differences in the last "
        "column. `python -m studies.hospitals.preset`.*"
    )
    return f"{shown}\n\n{note}"


def cifar10() -> str:
    """Return the cells of the CIFAR-10 study that have been run."""
    from studies.cifar10.__main__ import RESULTS, SETTINGS, table

    found = [name for name in SETTINGS if (RESULTS / f"{name}.json").exists()]
    shown = [
        f"**{SETTINGS[name].title}**\n\n{table(name)}"
        for name in found
        if table(name).count("\n") > 1
    ]
    if not shown:
        return "No cell of it has been run on the full data yet."
    note = (
        "*100 clients, ten local steps with batches of ten, three seeds (two shards: one, without "
        "an interval); mean ± half of the 95 % t interval; differences are paired by seed. "
        "Learning rates, and for FedAvgM, FedDyn and aligned ADMM whether the server's model or "
        "the participants' mean is reported, were chosen on validation samples and seeds that are "
        "not reported. `python -m studies.cifar10`.*"
    )
    return "\n\n".join([*shown, note])


def attacks() -> str:
    """Return test accuracy on digits under four attacks, by aggregation."""
    from studies.attacks.__main__ import ROWS

    found = json.loads((ROOT / "studies/attacks/results.json").read_text("utf-8"))
    columns = {
        "honest": "none | 0",
        "sign flip, 10 %": "sign flip | 0.1",
        "scaled, 10 %": "scaled by -10 | 0.1",
        "label flip, 10 %": "label flip | 0.1",
        "sign flip, 30 %": "sign flip | 0.3",
        "label flip, 30 %": "label flip | 0.3",
    }

    def cell(values: list[float | None]) -> str:
        known = [one for one in values if one is not None]
        return f"{100 * fmean(known):.1f}" if len(known) == len(values) else "diverged"

    rows = [
        [row, *(cell(found[f"digits | {row} | {column}"]) for column in columns.values())]
        for row in ROWS
    ]
    note = (
        "*Mean of three seeds. `python -m studies.attacks studies/attacks/results.json`; "
        "the file also has Fashion-MNIST and a fourth attack.*"
    )
    return f"{markdown([['', *columns], *rows])}\n\n{note}"


def inversion() -> str:
    """Return what a server recovers from one client's update."""
    from studies.inversion.__main__ import AttackResult, table

    found = json.loads((ROOT / "studies/inversion/results.json").read_text("utf-8"))
    note = (
        "*One client, one seed; a sample counts as recovered from 20 dB on. "
        "`python -m studies.inversion --out studies/inversion/results.json`.*"
    )
    return f"{table(AttackResult(**row) for row in found)}\n\n{note}"


def one_liar() -> str:
    """Return test accuracy on digits with one malicious site of four and of ten."""
    from studies.attacks.__main__ import FEW, FEW_ROWS

    found = json.loads((ROOT / "studies/attacks/one-liar.json").read_text("utf-8"))
    kinds = {"iid": "IID", "dirichlet": "Dirichlet"}
    head = [""]
    for partition, sites in FEW:
        head += [f"{sites} sites, {kinds[partition]}: honest", "one liar", "named"]
    rows = []
    for row in FEW_ROWS:
        cells = [row]
        for partition, sites in FEW:
            honest, lied = (
                found[f"{row} | {partition} | {sites} | {kind}"] for kind in ("honest", "one liar")
            )
            cells += [f"{100 * fmean(one['accuracy']):.1f}" for one in (honest, lied)]
            cells.append(f"{lied['lowest cosine'].count(0)} of {len(lied['lowest cosine'])}")
        rows.append(cells)
    note = (
        "*Mean of ten seeds, 30 rounds, equal weights, Dirichlet 0.5. `python -m studies.attacks "
        "--one-liar studies/attacks/one-liar.json`.*"
    )
    return f"{markdown([head, *rows])}\n\n{note}"


def hospitals_private() -> str:
    """Return the configuration of the private federation."""
    return f"``` {{ .toml }}\n{(ROOT / 'examples/hospitals_private.toml').read_text('utf-8')}```"


TABLES: dict[str, Callable[[], str]] = {
    "participation-rate": participation_rate,
    "hospitals": hospitals,
    "preset-hospitals": preset_hospitals,
    "cifar10": cifar10,
    "attacks": attacks,
    "inversion": inversion,
    "hospitals-private": hospitals_private,
    "one-liar": one_liar,
    **{
        path.stem: lambda name=path.stem: stored(name)  # type: ignore[misc]
        for path in HERE.glob("*.csv")
    },
}


def filled(text: str) -> str:
    """Return a page with its tables made again."""
    return BLOCK.sub(lambda found: f"{found[1]}\n\n{TABLES[found[2]]()}\n\n{found[3]}", text)


if __name__ == "__main__":
    for page in PAGES:
        before = page.read_text("utf-8")
        if (after := filled(before)) != before:
            page.write_text(after, "utf-8")
            print(page.name)
