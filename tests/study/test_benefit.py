"""Was federating worth it: each site alone, pooled and federated, on each site's held-out rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedadmm.run.simulate import simulate
from fedadmm.study import config
from fedadmm.study.benefit import Gain, SiteBenefit, site_benefit
from fedadmm.study.run_dir import RunDir
from fedadmm.study.single_run import run


def table(folder: Path, kind: str, noise: float = 0.3, rows: int = 15) -> dict[str, object]:
    """Four small sites that share one rule in six columns, which none of them can learn alone."""
    draws = np.random.default_rng(3)
    rule = draws.normal(size=6)
    for site in "abcd":
        x = draws.normal(size=(rows, 6))
        y = x @ rule + noise * draws.normal(size=rows)
        shown = np.where(y > 0, "yes", "no") if kind == "classes" else y.round(4).astype(str)
        lines = [
            ",".join([*(f"{v:.4f}" for v in row), one]) for row, one in zip(x, shown, strict=True)
        ]
        (folder / f"{site}.csv").write_text("\n".join(["a,b,c,d,e,f,y", *lines]) + "\n")
    return {
        "name": "table",
        "path": [str(folder / f"{site}.csv") for site in "abcd"],
        "target": "y",
        "kind": kind,
        "model": "logistic" if kind == "classes" else "linear",
        "preparation": "from-sums",
        "test_fraction": 0.4,
        "weights": "samples",
    }


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_scores_are_those_of_each_site_s_own_held_out_rows(kind: str, tmp_path: Path) -> None:
    solver = {"name": "sgd", "lr": 0.1, "batch_size": 5}
    tree = {"problem": table(tmp_path, kind), "rounds": 30, "local": {"solver": solver}}
    chosen = config.resolve(tree)
    run(chosen, tmp_path / "run")
    params = RunDir(tmp_path / "run").model(last=True).params
    found = site_benefit(chosen, params)
    assert found is not None
    tests = chosen.load_problem().client_tests
    assert tests is not None
    if kind == "classes":
        expected = [dict(test(params))["test_accuracy"] for test in tests]
    else:  # the loss is half the squared error
        expected = [2 * dict(test(params))["test_loss"] for test in tests]
    assert found.scores["shared"] == pytest.approx(expected, abs=1e-6)
    assert list(found.scores) == ["local", "shared", "personalised"]
    assert (found.sites, found.sizes) == (list("abcd"), [6] * 4)
    sign = 1 if kind == "classes" else -1
    for how, gains in found.gains.items():
        by_site = sign * (np.array(found.scores[how]) - np.array(found.scores["local"]))
        assert [gain.mean for gain in gains] == pytest.approx([*by_site, by_site.mean()])
        assert all(gain.low <= gain.mean <= gain.high for gain in gains)
    if kind == "numbers":
        assert found.gains["shared"][-1].verdict == "better"
    shown = found.table()
    assert [line[0] for line in shown.lines] == [*"abcd", "all"]
    assert [line[-1] for line in shown.lines] == [g.verdict for g in found.gains["personalised"]]
    assert SiteBenefit.read(found.document()) == found


def test_personalised_models_are_those_of_ditto_with_the_runs_seed(tmp_path: Path) -> None:
    tree = {"problem": table(tmp_path, "classes"), "rounds": 5}
    tree |= {"local": {"solver": {"name": "sgd", "lr": 0.5}}}
    chosen = config.resolve(tree)
    problem = chosen.load_problem()
    found = site_benefit(chosen, torch.zeros(problem.num_parameters))
    assert found is not None
    local = tree["local"] | {"personal": {"name": "ditto", "weight": 0.1}}
    ran = simulate(config.resolve(tree | {"local": local}))
    assert problem.client_tests is not None
    expected = [
        dict(test(ran.personal(site)))["test_accuracy"]
        for site, test in enumerate(problem.client_tests)
    ]
    assert found.scores["personalised"] == pytest.approx(expected)


def test_the_interval_is_that_of_resampled_rows(tmp_path: Path) -> None:
    """A model that is never right gains minus the accuracy of the others, in every resample."""
    tree = {"problem": table(tmp_path, "classes", noise=0.0, rows=40), "rounds": 20}
    chosen = config.resolve(tree | {"local": {"solver": {"name": "sgd", "lr": 0.5}}})
    problem = chosen.load_problem()
    good = site_benefit(chosen, torch.zeros(problem.num_parameters))
    assert good is not None
    gap = np.dot(np.subtract(good.scores["shared"], good.scores["local"]), good.sizes)
    total = good.gains["shared"][-1]
    assert total.mean == pytest.approx(gap / sum(good.sizes))
    assert total.verdict == "worse"


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.01, 0.2, "better"),
        (0.0, 0.0, "not significant"),
        (-0.1, 0.1, "not significant"),
        (-0.2, -0.1, "worse"),
    ],
)
def test_nothing_is_claimed_from_an_interval_with_zero(low: float, high: float, words: str) -> None:
    assert Gain((low + high) / 2, low, high).verdict == words
