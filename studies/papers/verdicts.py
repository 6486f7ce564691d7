"""The claims of the papers with a verdict, our numbers and the paper's, as a table.

A number of ours is written as `{CELL MEASURE}` of the claim's first recipe and filled in from its
kept result, as are `{NAME}` of the parts in `others`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from studies.papers.others import OTHERS, RESULTS, stored


class Claim(NamedTuple):
    """A claim of a paper, and what came out."""

    paper: str
    claim: str
    verdict: str
    ours: str
    theirs: str
    recipes: str
    """Recipes of the evidence with their scale; the numbers are those of the first."""


NO_NUMBER = "a figure"
"""What stands for the paper's number where it shows only curves."""

CLAIMS = [
    Claim(
        "Wang, figures 1, 2",
        "FedDR and FedADMM are one method",
        "**holds**",
        "largest difference {wang-fig1 identity} (FEMNIST), {wang identity} (synthetic)",
        "0",
        "wang-fig1, wang-fig2, quick",
    ),
    Claim(
        "Zhang and Hong",
        "FedPD, FedDyn and FedADMM are one method with all clients",
        "**holds**",
        "largest difference {note identity}",
        "0",
        "note-identity, full",
    ),
    Claim(
        "Wang, figure 3",
        "FedADMM gains with more clients per round",
        "**holds** from 10 of 30 writers on",
        "5, 10, 20, 30 of 30: {of30-5/fedadmm final}, {of30-10/fedadmm final}, "
        "{of30-20/fedadmm final}, {of30-30/fedadmm final}",
        NO_NUMBER,
        "wang-fig3, quick",
    ),
    Claim(
        "Gong, Table III, IID",
        "FedADMM needs the fewest rounds",
        "**not found**",
        "rounds: as released {released-iid/released rounds}, FedAvg {released-iid/fedavg rounds}, "
        "SCAFFOLD {released-iid/scaffold rounds}; full size below",
        "FedADMM 10, FedAvg 19, SCAFFOLD 27",
        "gong-worlds, quick and full",
    ),
    Claim(
        "Gong, Table III, two shards",
        "the same",
        "**not found** at quick size; at full size, in the authors' network and on one seed, the "
        "released program is ahead of SCAFFOLD and FedAvg in accuracy",
        "rounds: as released {released-shards/released rounds}, FedAvg "
        "{released-shards/fedavg rounds}, SCAFFOLD {released-shards/scaffold rounds}",
        "FedADMM 33, FedAvg 77, SCAFFOLD 76",
        "gong-worlds, quick and full",
    ),
    Claim(
        "Gong, Table IV",
        "more local epochs need fewer rounds",
        "**holds** from 1 to 5 epochs as released; from 5 to 10 the seeds overlap",
        "1, 5, 10 epochs, two shards: {mnist-shards-e1/fedadmm-released rounds}, "
        "{mnist-shards-e5/fedadmm-released rounds}, {mnist-shards-e10/fedadmm-released rounds}",
        "56, 33, 32",
        "gong-table4, gong-fig7, quick",
    ),
    Claim(
        "Gong, Table V",
        "one ρ serves FedADMM where FedProx depends on it",
        "**in part**: FedProx depends on ρ strongly in one setting of eight",
        "MNIST, 200 clients, IID: FedProx {mnist-200-iid/fedprox-0.01 rounds}, "
        "{mnist-200-iid/fedprox-0.1 rounds}, {mnist-200-iid/fedprox-1.0 rounds}; as released "
        "{mnist-200-iid/fedadmm-released rounds}",
        "FedProx 100+, 25, 81; FedADMM 3",
        "gong-table5, quick, one seed",
    ),
    Claim(
        "Gong, figure 3",
        "the lead grows with the population, IID",
        "**in part**: the released program catches up with FedAvg and is never ahead",
        "100, 1,000 clients: as released {fmnist-iid-100/fedadmm-released rounds}, "
        "{fmnist-iid-1000/fedadmm-released rounds}; FedAvg {fmnist-iid-100/fedavg rounds}, "
        "{fmnist-iid-1000/fedavg rounds}",
        NO_NUMBER,
        "gong-fig3, quick",
    ),
    Claim(
        "Gong, figure 4",
        "the same with two shards",
        "**not found**",
        "1,000 clients: as released {fmnist-shards-1000/fedadmm-released rounds}, FedAvg "
        "{fmnist-shards-1000/fedavg rounds}",
        NO_NUMBER,
        "gong-fig4, quick",
    ),
    Claim(
        "Gong, figure 5",
        "one setting serves IID data and shards",
        "**holds** as released; other methods need fewer rounds",
        "IID, shards: as released {fmnist-iid/fedadmm-released rounds}, "
        "{fmnist-shards/fedadmm-released rounds}; FedAvg {fmnist-iid/fedavg rounds}, "
        "{fmnist-shards/fedavg rounds}",
        NO_NUMBER,
        "gong-fig5, quick",
    ),
    Claim(
        "Gong, figure 6",
        "a step that falls to 0.5 improves the accuracy",
        "**holds** with two shards; with IID data the seeds overlap",
        "shards: {mnist-shards/step-1.0 final} to {mnist-shards/step-drop final}; IID: "
        "{mnist-iid/step-1.0 final} to {mnist-iid/step-drop final}",
        NO_NUMBER,
        "gong-fig6, quick",
    ),
    Claim(
        "Gong, figure 8",
        "local training should start at the client's own model",
        "**contradicted** wherever runs do not diverge",
        "the global start is ahead by {gain} points",
        NO_NUMBER,
        "gong-fig8, quick",
    ),
    Claim(
        "Gong, figure 9",
        "a larger ρ from round 60 on improves the accuracy",
        "**holds** as printed",
        "IID: {mnist-iid/rho-0.01 final} to {mnist-iid/rho-change final}; shards: "
        "{mnist-shards/rho-0.01 final} to {mnist-shards/rho-change final}",
        NO_NUMBER,
        "gong-fig9, quick",
    ),
    Claim(
        "Gong, figure 10",
        "FedADMM handles imbalanced data best",
        "**not found**: level with FedAvg, FedProx and SCAFFOLD",
        "as released {fmnist-imbalanced/fedadmm-released best}, FedAvg "
        "{fmnist-imbalanced/fedavg best}",
        NO_NUMBER,
        "gong-fig10, quick",
    ),
    Claim(
        "FedDR, figures 2, 3",
        "FedDR has the best accuracy",
        "**depends on the measurement**: the program evaluates FedDR with each client's own model "
        "and the others with the global one",
        "FedDR own {synthetic-1-1/feddr-local final}, global {synthetic-1-1/feddr final}, global "
        "and trained from θ {synthetic-1-1/feddr-theta final}; FedAvg "
        "{synthetic-1-1/fedavg final}",
        NO_NUMBER,
        "feddr-fig2, feddr-fig3, quick",
    ),
    Claim(
        "FedDR, figure 4",
        "the same, FEMNIST",
        "**depends on the start** of local training",
        "own start {femnist/feddr final}, global start {femnist/feddr-theta final}; FedAvg "
        "{femnist/fedavg final}",
        NO_NUMBER,
        "feddr-fig4, quick, one seed",
    ),
    Claim(
        "FedDR, figure 5",
        "learning rates and epochs with ℓ₁",
        "**only on the clients' models**: the program's threshold sets every weight of the global "
        "model to zero",
        "clients' models {femnist/eta1000-lr0.01-local final}, global model "
        "{femnist/eta1000-lr0.01 final}",
        NO_NUMBER,
        "feddr-fig5, quick, one seed",
    ),
    Claim(
        "FedDR, figure 6",
        "asyncFedDR loses little to FedDR",
        "**holds**",
        "at most {feddr loss} points",
        NO_NUMBER,
        "feddr-fig6, quick",
    ),
    Claim(
        "InSa, table",
        "InSa depends little on β",
        "**holds** on MNIST (one seed)",
        "{insa range}",
        "0.4, 8.0 points",
        "insa-table, quick",
    ),
    Claim(
        "InSa, table",
        "the criterion saves work",
        "**in part**: epochs, not passes",
        "{insa savings}",
        "39 % of the epochs",
        "insa-table, quick",
    ),
    Claim(
        "InSa, figures",
        "penalties adapt",
        "**holds** from β = 10; from β = 1 they hardly move",
        "mean penalty {mnist-b1/fedadmm-insa penalty_mean} of 1, "
        "{mnist-b10/fedadmm-insa penalty_mean} of 10",
        NO_NUMBER,
        "insa-fig, quick, one seed",
    ),
    Claim(
        "FLamby, heart disease",
        "adaptive methods lead FedAvg",
        "**half of the lead is one of learning rates**",
        "published rates: FedAdagrad {published/fedadagrad final}, FedAvg "
        "{published/fedavg final}; searched: {searched/fedadagrad-searched final}, "
        "{searched/fedavg-searched final}",
        "FedAdagrad 73.1, FedAvg 68.5 %",
        "flamby-heart, full",
    ),
]


def number(row: dict[str, Any], measure: str) -> str:
    """The mean over the seeds: rounds as they are, shares in per cent."""
    if measure == "rounds":
        found = row["rounds_to_target"]
        if found["mean"] is None:
            return f"{row['rounds']}+"
        missed = "" if found["count"] == found["of"] else f" ({found['count']} of {found['of']})"
        return f"{found['mean']:.0f}{missed}"
    if measure == "penalty_mean":
        return f"{row[measure]['mean']:.2f}"
    return f"{100 * row[measure]['mean']:.1f} %"


def ours(claim: Claim) -> str:
    """Our numbers of a claim, from the kept result of its first recipe."""
    recipe = claim.recipes.partition(",")[0]

    def filled(found: re.Match[str]) -> str:
        if found[1] in OTHERS:
            return OTHERS[found[1]]()
        cell, _, measure = found[1].rpartition(" ")
        (path,) = Path(RESULTS).glob(f"{recipe}-*.json")
        return number(stored(path.stem)[cell], measure)

    return re.sub(r"\{([^}]+)\}", filled, claim.ours)


def verdicts() -> str:
    """The table of all claims."""
    lines = ["| paper | claim | verdict | ours | the paper's | recipe, scale |", "|---" * 6 + "|"]
    for claim in CLAIMS:
        cells = [claim.paper, claim.claim, claim.verdict, ours(claim), claim.theirs, claim.recipes]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
