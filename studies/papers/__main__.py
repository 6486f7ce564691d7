"""Keep the results of `fedadmm reproduce`, and write the pages about the papers from them.

python -m studies.papers keep runs/reproduce/gong-fig8-quick … "when, on what"
python -m studies.papers page

`page` writes all-results.md, the parts of docs/reproduction.md between comments
`<!-- NAME -->` and `<!-- end -->`, and the figures of that page, from the stored results and from
those of `python -m studies.gong`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from fedadmm.study.reproduce import markdown
from studies.gong.__main__ import CAP, RATES, ROUNDS, planned, rate_of
from studies.papers.others import OTHERS, RESULTS, stored
from studies.papers.verdicts import verdicts

HERE = Path(__file__).parent
GONG = HERE.parent / "gong" / "results"
DOCS = HERE.parents[1] / "docs"
COLUMNS = {
    "printed": "FedADMM printed",
    "released": "FedADMM released",
    "printed-global": "step 1, θ",
    "tracking-global": "tracking, θ",
    "aligned-1": "aligned, σ = 1",
    "aligned-auto": "aligned",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "fedsgd": "FedSGD",
}
SETTINGS = {
    "released-iid": "released network, IID",
    "sound-iid": "network of the text, IID",
    "released-shards": "released network, two shards",
    "sound-shards": "network of the text, two shards",
}
LARGEST = 100_000
KEPT = ("id", "scale", "title", "source", "notes", "measures", "seeds", "edges", "table", "made")
ROW = (
    *("setting", "setting_title", "label", "title", "reading", "name", "paper", "paper_speedup"),
    *("seeds", "diverged", "rounds", "reduction", "baseline", "best_baseline", "chosen", "by_seed"),
)


def kept(
    document: Mapping[str, Any], made: str, before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What the page needs of a results.json: the rows without their runs.

    What was not run this time is as it was kept before, if it was.
    """
    wanted = (*ROW, *document["measures"], "rounds_to_target")
    ran = [row for row in document["table"] if row["seeds"]]
    table = [{key: row[key] for key in wanted if key in row} for row in ran]
    names = {row["name"] for row in table if "name" in row}
    old = before or {"table": [], "seeds": [], "edges": []}
    table += [row for row in old["table"] if row["name"] not in names]
    seeds = max(document["seeds"], old["seeds"], key=len)
    edges = [one for one in old["edges"] if names.isdisjoint(_cells(one))] + document["edges"]
    known = {**document, "table": table, "made": made, "seeds": seeds, "edges": edges}
    return {key: known[key] for key in KEPT}


def _cells(edge: Mapping[str, Any]) -> list[str]:
    """The cells whose search chose a value at an edge."""
    return [f"{place}/{edge['row']}" for place in edge["places"]]


def keep(folder: Path, made: str) -> Path:
    """Store a reproduction's results beside the others."""
    document = json.loads((folder / "results.json").read_text("utf-8"))
    path = RESULTS / f"{document['id']}-{document['scale']}.json"
    before = json.loads(path.read_text("utf-8")) if path.exists() else None
    small = kept(document, made, before)
    text = json.dumps(small, indent=1, ensure_ascii=False) + "\n"
    if len(text.encode()) > LARGEST:
        text = json.dumps(small, ensure_ascii=False) + "\n"
    path.write_text(text, "utf-8")
    return path


def gong_runs(name: str) -> list[dict[str, Any]]:
    """The runs of a cell of studies.gong, by seed."""
    return [json.loads(path.read_text("utf-8")) for path in sorted(GONG.glob(f"{name}-seed*"))]


def gong() -> str:
    """The cells of studies.gong: the rate that each chose, and each seed's rounds to the target."""
    lines = []
    for name, cell in planned().items():
        if not (runs := gong_runs(name)):
            continue
        first, paper = runs[0], cell.about["paper"]
        best = max(max(run["curve"]) for run in runs)
        row = [
            cell.about["setting_title"],
            cell.about["title"],
            cell.about["reading"],
            f"{rate_of(first):g}",
        ]
        row += [", ".join(map(reached, runs)), f"{best:.1%}", "" if paper is None else f"{paper:g}"]
        minutes = sum(run["seconds"] for run in runs) / 60
        lines.append(f"| {' | '.join(row)} | {minutes:.0f} |")
    head = "setting | row | reading | rate | rounds to the target, by seed | best | paper | minutes"
    return "\n".join([f"| {head} |", "|---" * 8 + "|", *lines])


def reached(run: Mapping[str, Any]) -> str:
    """The rounds of a run to the target, or how it ended without."""
    rounds = len(run["curve"])
    if run["rounds_to_target"] is None:
        return f"diverged in {rounds}" if run["code"] == "diverged" else f"{rounds}+"
    return str(rounds)


def full_size() -> str:
    """Rounds to 97 % at the paper's size: a row for each setting, a column for each method."""
    cells = planned()
    lines = [f"| rounds to 97 %, by seed | {' | '.join(COLUMNS.values())} |"]
    lines.append("|---" * (len(COLUMNS) + 1) + "|")
    for setting, title in SETTINGS.items():
        papers = [cells[f"{setting}-{row}"].about["paper"] for row in COLUMNS]
        if any(papers):  # the text's network is the released one's row of the paper again
            printed = [f"{one:g}" if isinstance(one, float) else one or "–" for one in papers]
            title_of_paper = f"*paper, {title.partition(', ')[2]}*"
            lines.append(f"| {title_of_paper} | {' | '.join(printed)} |")
        found = []
        for row in COLUMNS:
            runs = gong_runs(f"{setting}-{row}")
            missed = [max(run["curve"]) for run in runs if run["rounds_to_target"] is None]
            best = f" ({100 * max(missed):.1f} %)" if missed else ""
            found.append((", ".join(map(reached, runs)) or "–") + best)
        lines.append(f"| {title} | {' | '.join(found)} |")
    return "\n".join(lines)


def thousand() -> str:
    """Rounds to 80 % with 1,000 clients: a row for each method that was run."""
    lines = [
        "| Fashion-MNIST, 1,000 clients, IID | rounds to 80 %, by seed | paper |",
        "|---|---|---|",
    ]
    for row, title in COLUMNS.items():
        name = f"released-fmnist1000-{row}"
        if runs := gong_runs(name):
            paper = planned()[name].about["paper"]
            printed = "–" if paper is None else f"{paper:g}"
            lines.append(f"| {title} | {', '.join(map(reached, runs))} | {printed} |")
    return "\n".join(lines) if len(lines) > 2 else "No setting with 1,000 clients was run."


def quick() -> str:
    """Rounds to the target at quick scale: a row for each setting, a column for each method."""
    rows = stored("gong-worlds-quick")
    lines = [f"| rounds to the target, by seed | {' | '.join(COLUMNS.values())} |"]
    lines.append("|---" * (len(COLUMNS) + 1) + "|")
    for setting, title in SETTINGS.items():
        found = []
        for row in (rows[f"{setting}/{column}"] for column in COLUMNS):
            seeds = row["by_seed"]["rounds_to_target"].values()
            text = [f"{row['rounds']}+" if one is None else f"{one:.0f}" for one in seeds]
            diverged = f" ({row['diverged']} diverged)" if row["diverged"] else ""
            found.append(", ".join(text) + diverged)
        lines.append(f"| {title} | {' | '.join(found)} |")
    return "\n".join(lines)


def missing() -> str:
    """The cells without a run, and what they cost at most by the seconds of those that were run."""
    known = {name: gong_runs(name) for name in planned()}
    paces: dict[str, list[float]] = {}
    for name, runs in known.items():
        for run in runs:
            paces.setdefault(name.split("-", 2)[2], []).append(run["seconds"] / len(run["curve"]))
    usual = median(pace for some in paces.values() for pace in some)
    hours: dict[str, dict[str, float]] = {}
    for setting in SETTINGS:
        # A search runs all rates on one seed, half of them on the next, and a quarter on the last.
        tried = ROUNDS[setting.partition("-")[2]] * (len(RATES) + len(RATES) // 2 + 1)
        for row, title in COLUMNS.items():
            name = f"{setting}-{row}"
            if not known[name]:
                searched = (GONG / f"{name}-search.json").exists()
                rounds = CAP + (0 if searched else tried)
                seconds = rounds * median(paces.get(row, [usual]))
                hours.setdefault(setting, {})[title] = seconds / 3600
    if not hours:
        return "No cell is missing."
    lines = [
        f"* {SETTINGS[setting]}: {'; '.join(f'{t}: {h:.1f}' for t, h in some.items())}"
        for setting, some in hours.items()
    ]
    total = sum(sum(some.values()) for some in hours.values())
    head = f"Missing, with the core-hours of the search and of {CAP} rounds, {total:.1f} together:"
    return "\n".join([head, "", *lines])


def sentence() -> str:
    """What the IID runs in the released network came to, in words."""
    words = []
    for row in ("fedavg", "scaffold", "released", "printed"):
        runs = gong_runs(f"released-iid-{row}")
        rounds = [reached(run).replace(f"{CAP}+", f"more than {CAP}") for run in runs]
        some = f"{', '.join(rounds[:-1])} and {rounds[-1]}" if len(rounds) > 1 else rounds[0]
        paper = planned()[f"released-iid-{row}"].about["paper"]
        words.append(f"{COLUMNS[row]} in {some} (paper {paper:g})")
    return "; ".join(words)


def shards() -> str:
    """What the runs with two shards in the released network came to, in words."""
    words = []
    for row, title in COLUMNS.items():
        if runs := gong_runs(f"released-shards-{row}"):
            best = ", ".join(f"{100 * max(run['curve']):.1f} %" for run in runs)
            words.append(f"{title} {best} (rounds to 97 %: {', '.join(map(reached, runs))})")
    if not words:
        return "Two shards were not run at this size."
    return f"With two shards the best accuracies within {CAP} rounds are: {'; '.join(words)}."


def ladder() -> str:
    """Rounds to 97 % and local epochs of a participant, one change at a time."""
    changes = {"momentum": "+ momentum 0.5", "upload": "+ upload × 2", "epochs": "+ drawn epochs"}
    rows = {"fedavg": "FedAvg", **{f"ladder-{rung}": title for rung, title in changes.items()}}
    lines = ["| released network, IID | rounds to 97 %, by seed | local epochs of a participant |"]
    lines.append("|---" * 3 + "|")
    for row, title in (rows | {"released": "+ duals, as released"}).items():
        runs = gong_runs(f"released-iid-{row}")
        epochs = [f"{run['epochs']:.0f}" if "epochs" in run else "–" for run in runs]
        lines.append(f"| {title} | {', '.join(map(reached, runs))} | {', '.join(epochs)} |")
    return "\n".join(lines)


PARTS = {
    **OTHERS,
    "verdicts": verdicts,
    "sentence": sentence,
    "shards": shards,
    "quick": quick,
    "full size": full_size,
    "thousand": thousand,
    "missing": missing,
    "ladder": ladder,
}
"""The generated parts of docs/reproduction.md."""


def filled(text: str) -> str:
    """A page with its generated parts made again; one on lines of its own is a block."""
    for name, make in PARTS.items():
        part = re.compile(rf"(<!-- {name} -->)(?:(?!<!--).)*(<!-- end -->)", re.DOTALL)
        found = part.findall(text)
        assert len(found) <= 1, f"the page has {len(found)} parts {name!r}, expected one"
        gap = "\n\n" if re.search(f"(?m)^{part.pattern}$", text, re.DOTALL) else ""
        text = part.sub(rf"\g<1>{gap}{make()}{gap}\g<2>", text)
    return text


def section(document: Mapping[str, Any]) -> str:
    """One table or figure: the command, when it was made, and the tables."""
    command = f"fedadmm reproduce {document['id']} --scale {document['scale']}"
    first, *rest = markdown(document).splitlines()
    title = f"## {document['id']}, {document['scale']} scale: {first.partition(': ')[2]}"
    lines = [f"**{line[3:]}**" if line.startswith("## ") else line for line in rest]
    head = [title, "", f"`{command} --seeds {len(document['seeds'])}`; {document['made']}."]
    return "\n".join([*head, *lines])


def page() -> str:
    """The whole page."""
    text = (HERE / "tables.md").read_text("utf-8")
    found = [json.loads(path.read_text("utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    sections = "\n\n".join(section(one).strip() for one in found)
    return text.replace("{{ results }}", sections).replace("{{ gong }}", gong())


def main(words: list[str]) -> None:
    """`keep FOLDER … MADE` or `page`."""
    match words:
        case ["keep", *folders, made] if folders:
            for folder in folders:
                print(keep(Path(folder), made))
        case ["page"]:
            (HERE / "all-results.md").write_text(page(), "utf-8")
            path = DOCS / "reproduction.md"
            path.write_text(filled(path.read_text("utf-8")), "utf-8")
            sys.path.insert(0, str(DOCS / "_figures"))
            import_module("reproduction").draw_all(DOCS)
        case _:
            sys.exit(f"usage:{(__doc__ or '').partition('them.')[2].partition('`page`')[0]}")


if __name__ == "__main__":
    main(sys.argv[1:])
