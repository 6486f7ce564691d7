"""Keep the results of `fedadmm reproduce`, and write docs/reproduction-tables.md from them.

python -m studies.papers keep runs/reproduce/gong-fig8-quick … "when, on what"
python -m studies.papers page docs/reproduction-tables.md

The page also shows the runs of `python -m studies.gong`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedadmm.study.reproducing import markdown
from studies.gong.__main__ import planned

HERE = Path(__file__).parent
RESULTS = HERE / "results"
GONG = HERE.parent / "gong" / "results"
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

    A row that was not run this time is the one that was kept before, if there is one.
    """
    wanted = (*ROW, *document["measures"], "rounds_to_target")
    ran = [row for row in document["table"] if row["seeds"]]
    table = [{key: row[key] for key in wanted if key in row} for row in ran]
    names = {row["name"] for row in table if "name" in row}
    table += [row for row in (before or {"table": []})["table"] if row["name"] not in names]
    seeds = max(document["seeds"], before["seeds"], key=len) if before else document["seeds"]
    known = {**document, "table": table, "made": made, "seeds": seeds}
    return {key: known[key] for key in KEPT}


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


def gong() -> str:
    """The cells of studies.gong: the rate that each chose, and each seed's rounds to the target."""
    lines = []
    for name, cell in planned().items():
        runs = [json.loads(path.read_text("utf-8")) for path in sorted(GONG.glob(f"{name}-seed*"))]
        if not runs:
            continue
        first, paper = runs[0], cell.about["paper"]
        rate = first.get("lr") or (first["config"].get("local") or first["config"])["solver"]["lr"]
        best = max(max(run["curve"]) for run in runs)
        row = [cell.about["setting_title"], cell.about["title"], cell.about["reading"], f"{rate:g}"]
        row += [", ".join(map(reached, runs)), f"{best:.1%}", "" if paper is None else f"{paper:g}"]
        minutes = sum(run["seconds"] for run in runs) / 60
        lines.append(f"| {' | '.join(row)} | {minutes:.0f} |")
    head = "setting | row | reading | rate | rounds to 97 %, by seed | best | paper | minutes"
    return "\n".join([f"| {head} |", "|---" * 8 + "|", *lines])


def reached(run: Mapping[str, Any]) -> str:
    """The rounds of a run to the target, or how it ended without."""
    rounds = len(run["curve"])
    if run["rounds_to_target"] is None:
        return f"diverged in {rounds}" if run["code"] == "diverged" else f"{rounds}+"
    return str(rounds)


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
    """`keep FOLDER … MADE` or `page FILE`."""
    match words:
        case ["keep", *folders, made] if folders:
            for folder in folders:
                print(keep(Path(folder), made))
        case ["page", file]:
            Path(file).write_text(page(), "utf-8")
        case _:
            sys.exit(f"usage:{(__doc__ or '').partition('them.')[2]}")


if __name__ == "__main__":
    main(sys.argv[1:])
