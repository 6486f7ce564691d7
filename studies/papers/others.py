"""What the page for readers shows of Wang et al., FedDR, InSa and FLamby, from stored results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def stored(name: str) -> dict[str, dict[str, Any]]:
    """The rows of a kept result, by setting and method."""
    document = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    return {row["name"]: row for row in document["table"]}


def table(head: list[str], rows: Mapping[str, list[str]]) -> str:
    """A table in Markdown, each row under its title."""
    lines = [head, ["---"] * len(head), *([title, *cells] for title, cells in rows.items())]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def percent(row: Mapping[str, Any], measure: str = "final") -> str:
    """A share with its standard deviation where there are several seeds."""
    found = row[measure]
    spread = f" ± {100 * found['std']:.1f}" if found["count"] > 1 else ""
    return f"{100 * found['mean']:.1f}{spread} %"


def span(values: list[float]) -> str:
    """The least and the largest of some shares, in percent or points."""
    low, high = (f"{100 * one:.2g}" for one in (min(values), max(values)))
    return f"{low} to {high}"


def gain() -> str:
    """What the start at θ gains over the own model wherever neither diverges, in points."""
    pairs = {
        "gong-fig8-quick": ("own-", "global-", "best"),
        "feddr-fig2-quick": ("feddr", "feddr-theta", "final"),
        "feddr-fig3-quick": ("feddr", "feddr-theta", "final"),
        "feddr-fig4-quick": ("feddr", "feddr-theta", "final"),
        "feddr-fig6-quick": ("feddr", "feddr-theta", "best"),
    }
    found = []
    for name, (own, theta, measure) in pairs.items():
        rows = stored(name)
        for key, row in rows.items():
            other = rows.get(key.replace(own, theta))
            if other and other is not row and not row["diverged"] and not other["diverged"]:
                found.append(other[measure]["mean"] - row[measure]["mean"])
    return span(found)


def identity(name: str, ending: str) -> str:
    """The largest difference from the reference's value in any round on any seed."""
    found = [row["distance"]["max"] for key, row in stored(name).items() if key.endswith(ending)]
    return f"{max(found):.1e}"


def wang() -> str:
    """The training loss of figure 2 with each difference of the program alone."""
    titles = {
        "fedadmm": "as printed",
        "fedadmm-released": "all three",
        "fedadmm-layer": "only the second hidden layer",
        "fedadmm-start": "only the first start at θ",
        "fedadmm-slots": "only the slots of unseen clients",
    }
    rows = [stored("wang-fig2-quick")[f"synthetic-1-1/{name}"]["final"] for name in titles]
    cells = [f"{one['mean']:.3f} ± {one['std']:.2f}" for one in rows]
    return table(["", *titles.values()], {"training loss": cells})


def writers() -> str:
    """FedADMM's training accuracy by the number of writers per round."""
    rows = {key: row for key, row in stored("wang-fig3-quick").items() if key.endswith("/fedadmm")}
    head = [key.partition("/")[0].removeprefix("of30-") for key in rows]
    return table(["of 30 writers", *head], {"training accuracy": [*map(percent, rows.values())]})


def feddr() -> str:
    """Figures 2 to 4: the final accuracy, by the model that is measured and the start."""
    titles = {
        "feddr-local": "FedDR, clients' models",
        "feddr": "FedDR, global model, own start",
        "feddr-theta": "FedDR, global model, from θ",
        "fedpd": "FedPD",
        "fedprox": "FedProx",
        "fedavg": "FedAvg",
    }
    figures = {
        "figure 2, three seeds": ("feddr-fig2-quick", "synthetic-1-1"),
        "figure 3, one seed": ("feddr-fig3-quick", "synthetic-1-1"),
        "figure 4, one seed": ("feddr-fig4-quick", "femnist"),
    }
    rows = {
        title: [percent(stored(name)[f"{setting}/{method}"]) for method in titles]
        for title, (name, setting) in figures.items()
    }
    return table(["", *titles.values()], rows)


def feddr_rates() -> str:
    """Figure 5 with the program's η, by the model that is measured."""
    rates, rows = ("0.001", "0.003", "0.01"), stored("feddr-fig5-quick")
    models = {"global model": "", "clients' models": "-local"}
    found = {
        title: [percent(rows[f"femnist/eta1000-lr{rate}{ending}"]) for rate in rates]
        for title, ending in models.items()
    }
    return table(["figure 5, rate", *rates], found)


def feddr_loss() -> str:
    """The most that asyncFedDR loses to FedDR in figure 6, in points."""
    rows = stored("feddr-fig6-quick")
    losses = [
        row["best"]["mean"] - rows[key.replace("/", "/async-")]["best"]["mean"]
        for key, row in rows.items()
        if "/feddr" in key
    ]
    return f"{100 * max(losses):.1f}"


def feddr_async() -> str:
    """Figure 6: the best accuracy by how much the clients differ in speed."""
    rows, ratios = stored("feddr-fig6-quick"), (2, 5, 10)
    found = {
        f"{title}, {start}": [percent(rows[f"ratio-{r}/{name}{end}"], "best") for r in ratios]
        for start, end in (("own start", ""), ("from θ", "-theta"))
        for title, name in (("FedDR", "feddr"), ("asyncFedDR", "async-feddr"))
    }
    return table(["figure 6, slowest client", *(f"up to {r} times" for r in ratios)], found)


def insa_regression() -> str:
    """The regression with β = 1 beside the paper's loss."""
    rows = stored("insa-table-quick")
    names = {"fedadmm": "FedADMM", "fedadmm-in": "In", "fedadmm-insa": "InSa", "fedavg": "FedAvg"}
    keys = [f"regression{'' if name == 'fedavg' else '-b1'}/{name}" for name in names]

    def losses(ending: str) -> list[str]:
        found = [rows.get(f"{key}{ending}") for key in keys]
        return [f"{one['final']['mean']:.3f}" if one else "" for one in found]

    papers = [f"{rows[key]['paper']:g}" for key in keys]
    found = {"paper": papers, "as printed": losses(""), "as released": losses("-released")}
    return table(["", *names.values()], found)


def insa_mnist() -> str:
    """The accuracy on MNIST by β, beside the paper's."""
    rows, betas = stored("insa-table-quick"), (1, 2, 5, 10)
    titles = {
        "fedadmm": "FedADMM (paper)",
        "fedadmm-insa-released": "InSa, as released (paper)",
    }
    found = {
        title: [
            f"{percent(row)} ({100 * row['paper']:.1f})"
            for row in (rows[f"mnist-b{beta}/{name}"] for beta in betas)
        ]
        for name, title in titles.items()
    }
    return table(["β", *map(str, betas)], found)


def insa_range() -> str:
    """How much the accuracy on MNIST varies with β, ours and the paper's, in words."""
    rows = stored("insa-table-quick")
    insa, fixed = (
        [rows[f"mnist-b{beta}/{name}"] for beta in (1, 2, 5, 10)]
        for name in ("fedadmm-insa-released", "fedadmm")
    )

    def points(values: list[float]) -> str:
        return f"{100 * (max(values) - min(values)):.1f}"

    ours = [points([row["final"]["mean"] for row in some]) for some in (insa, fixed)]
    papers = [points([row["paper"] for row in some]) for some in (insa, fixed)]
    return f"{ours[0]} against {ours[1]} points over the four β (paper {' and '.join(papers)})"


def insa_penalties() -> str:
    """The mean penalty that InSa ends with on MNIST, in words."""
    rows = stored("insa-fig-quick")
    words = []
    for beta in (1, 10):
        ends = [
            f"{rows[f'mnist-b{beta}/{name}']['penalty_mean']['mean']:.3g}"
            for name in ("fedadmm-insa", "fedadmm-insa-released")
        ]
        words.append(f"from β = {beta} to {ends[0]} as printed and {ends[1]} as released")
    return ", ".join(words)


def insa_savings() -> str:
    """What the criterion saves in epochs and costs in passes, in words."""
    rows = stored("insa-table-quick")
    criteria = {key: row for key, row in rows.items() if "fedadmm-in" in key}
    released = [
        row for key, row in criteria.items() if key.startswith("reg") and key.endswith("released")
    ]
    printed = [row for row in criteria.values() if row["reading"] == "as printed"]
    saved = span([row["epoch_reduction"]["mean"] for row in released])
    more = span([-row["pass_reduction"]["mean"] for row in released])
    most = 100 * max(row["epoch_reduction"]["mean"] for row in printed)
    return (
        f"in the regression the released criterion saves {saved} % of the epochs and takes {more} %"
        f" more passes over the data; as printed it saves at most {most:.1f} % of the epochs,"
        " MNIST included"
    )


def flamby() -> str:
    """The benchmark's table beside ours, with its rates and with those of a search."""
    rows = stored("flamby-heart-full")
    names = ("fedavg", "fedprox", "scaffold", "cyclic", "fedadagrad", "fedadam", "fedyogi")
    ours = ("fedadmm", "feddr", "feddyn", "aligned")
    titles = [rows[f"published/{name}"]["title"] for name in names]
    titles += [rows[f"searched/{name}"]["title"] for name in ours]

    def accuracy(key: str) -> str:
        found = rows[key]["final"]
        return f"{found['mean']:.3f} ± {found['std']:.3f}".replace("0.", ".")

    empty = [""] * len(ours)
    searched = [*(f"{name}-searched" for name in names), *ours]
    published = [f"{rows[f'published/{name}']['paper']:.3f}".lstrip("0") for name in names]
    found = {
        "FLamby": published + empty,
        "here, the same rates": [accuracy(f"published/{name}") for name in names] + empty,
        "here, rates searched": [accuracy(f"searched/{name}") for name in searched],
    }
    return table(["", *titles], found)


def flamby_rates() -> str:
    """FedAvg at the rates that the benchmark gives to the adaptive methods, in words."""
    rows = stored("flamby-heart-full")
    words = []
    for rate in ("0.003162", "0.01"):
        found = rows[f"rate-{rate}/fedavg-rate"]["final"]
        words.append(f"{found['mean']:.3f} ± {found['std']:.3f} with {rate}")
    adaptive = rows["published/fedadagrad"]
    best = max(rows[f"rate-{rate}/fedavg-rate"]["final"]["mean"] for rate in ("0.003162", "0.01"))
    leads = (
        adaptive["paper"] - rows["published/fedavg"]["paper"],
        adaptive["final"]["mean"] - rows["published/fedavg"]["final"]["mean"],
        adaptive["final"]["mean"] - best,
    )
    shown = [f"{lead:.3f}".replace("0.", ".") for lead in leads]
    reached = " and ".join(words).replace("0.7", ".7").replace("± 0.", "± .")
    return (
        f"FedAvg reaches {reached}. FedAdagrad's lead over it is {shown[0]} in the benchmark, "
        f"{shown[1]} here with the same rates, and {shown[2]} over FedAvg's better rate of the two"
    )


OTHERS: dict[str, Callable[[], str]] = {
    "gain": gain,
    "wang": wang,
    "wang-fig1 identity": partial(identity, "wang-fig1-quick", "/fedadmm"),
    "wang identity": partial(identity, "wang-fig2-quick", "/fedadmm"),
    "note identity": partial(identity, "note-identity-full", ""),
    "writers": writers,
    "feddr": feddr,
    "feddr rates": feddr_rates,
    "feddr loss": feddr_loss,
    "feddr async": feddr_async,
    "insa regression": insa_regression,
    "insa mnist": insa_mnist,
    "insa range": insa_range,
    "insa savings": insa_savings,
    "insa penalties": insa_penalties,
    "flamby": flamby,
    "flamby rates": flamby_rates,
}
"""The generated parts of docs/reproduction.md about these papers."""
