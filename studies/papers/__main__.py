"""Keep the results of `fedadmm reproduce`, and write docs/reproduction-tables.md from them.

python -m studies.papers keep runs/reproduce/gong-fig8-quick … "when, on what"
python -m studies.papers page docs/reproduction-tables.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedadmm.study.reproducing import markdown

HERE = Path(__file__).parent
RESULTS = HERE / "results"
LARGEST = 100_000
KEPT = ("id", "scale", "title", "source", "notes", "measures", "seeds", "edges", "table", "made")
ROW = (
    *("setting", "setting_title", "label", "title", "reading", "name", "paper", "paper_speedup"),
    *("seeds", "diverged", "rounds", "reduction", "baseline", "best_baseline", "chosen", "by_seed"),
)


def kept(document: Mapping[str, Any], made: str) -> dict[str, Any]:
    """What the page needs of a results.json: the rows without their runs."""
    wanted = (*ROW, *document["measures"], "rounds_to_target")
    table = [{key: row[key] for key in wanted if key in row} for row in document["table"]]
    table = [row for row in table if row["seeds"]]
    known = {**document, "table": table, "made": made}
    return {key: known[key] for key in KEPT}


def keep(folder: Path, made: str) -> Path:
    """Store a reproduction's results beside the others."""
    document = json.loads((folder / "results.json").read_text("utf-8"))
    path = RESULTS / f"{document['id']}-{document['scale']}.json"
    text = json.dumps(kept(document, made), indent=1, ensure_ascii=False) + "\n"
    if len(text.encode()) > LARGEST:
        text = json.dumps(kept(document, made), ensure_ascii=False) + "\n"
    path.write_text(text, "utf-8")
    return path


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
    return text.replace("{{ results }}", "\n\n".join(section(one).strip() for one in found))


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
