"""What `import fedadmm` offers, and that it costs next to nothing."""

from __future__ import annotations

import ast
import doctest
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import fedadmm as fa


def test_everything_offered_can_be_had():
    for name in fa.__all__:
        assert getattr(fa, name) is not None
    assert set(dir(fa)) == set(fa.__all__)
    assert len(set(fa.__all__)) == len(fa.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'fedadmm' has no attribute 'FedMagic'"):
        fa.FedMagic  # noqa: B018


def test_everything_raised_on_purpose_has_one_root():
    errors = [value for name, value in vars(fa.errors).items() if name.endswith("Error")]
    assert all(issubclass(error, fa.FedADMMError) for error in errors)


def test_importing_warns_of_nothing_and_does_not_import_torch():
    program = (
        "import sys, fedadmm; assert 'torch' not in sys.modules; assert 'numpy' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_parameters_carry_the_letters_of_the_papers():
    methods = [
        fa.FedADMM(rho=1.0, step="tracking", members="all"),
        fa.FedDR(eta=1.0, alpha=1.0, init="start"),
        fa.FedDRII(eta=1.0),
        fa.FedSplit(eta=1.0),
        fa.FedADMMIn(beta=1.0),
        fa.FedADMMInSa(beta=1.0, mu=5, tau=2),
        fa.FedDyn(eta=1.0),
        fa.FedPD(eta=1.0, skip_probability=0),
        fa.FedProx(rho=1.0),
        fa.Scaffold(option=2, step=1.0),
        fa.FedSGD(lr=1.0),
        fa.FedAvg(),
    ]
    assert len({method.name for method in methods}) == 12
    assert all(type(method).__doc__ and method.paper for method in methods)
    assert fa.FedADMM(1.0) == methods[0]
    assert fa.FedADMMInSa(1.0) == methods[5]


def test_an_experiment_is_what_keywords_describe() -> None:
    """`simulate(experiment)` and `simulate(method, problem, rounds, …)` are the same run."""
    problem = fa.problems.load("quadratics", clients=3, dimension=2)
    work = {"solver": fa.GradientDescent(0.1), "stop": fa.Steps(2), "start": "own"}
    experiment = fa.Experiment(problem, fa.FedADMM(1.0), 4, local=fa.LocalWork(**work), seed=3)
    one = fa.simulate(experiment)
    other = fa.simulate(fa.FedADMM(1.0), problem, 4, seed=3, **work)
    assert one.params.equal(other.params)
    assert one.history[-1]["metrics"] == other.history[-1]["metrics"]


def stub_names() -> set[str]:
    """Return what `__init__.pyi` declares for type checkers and editors."""
    names = set()
    for node in ast.parse(Path(fa.__file__).with_suffix(".pyi").read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname for alias in node.names if alias.asname}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def test_the_stub_declares_the_names_that_can_be_imported():
    assert stub_names() == set(fa.__all__)


DOCUMENTED = [name for name in fa.__all__ if not inspect.ismodule(getattr(fa, name))]
DOCUMENTED.remove("__version__")


def run_examples(public: type, name: str) -> int:
    """Run the examples of a class or function, and return their number."""
    test = doctest.DocTestFinder(recurse=False).find(public, name, globs={})[0]
    printed: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    assert runner.run(test, out=printed.append).failed == 0, "".join(printed)
    return len(test.examples)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_public_name_has_an_example_that_runs(name):
    assert run_examples(getattr(fa, name), name) > 0


NAMESPACES = ("regularizers", "schedules", "outputs", "stopping")


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_examples_of_the_namespaces_run(namespace):
    module = getattr(fa, namespace)
    public = [
        kind
        for kind in vars(module).values()
        if inspect.isclass(kind) and kind.__module__ == module.__name__ and kind.__doc__
    ]
    assert sum(run_examples(kind, kind.__name__) > 0 for kind in public) >= 2


def test_the_typed_script_uses_every_public_name():
    script = Path(__file__).with_name("typing") / "accepted.py"
    nodes = ast.walk(ast.parse(script.read_text("utf-8")))
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    used = {node.attr for node in attributes if ast.unparse(node.value) == "fa"}
    assert used == set(fa.__all__)
