"""Problems with known facts: L by Hessians and gradient differences, F* by minimisation."""

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import Tensor

from fedadmm.core.contracts import Regularizer
from fedadmm.core.errors import DataError, ParameterError
from fedadmm.core.objectives import Objective
from fedadmm.core.objectives.closed_form import QuadraticObjective
from fedadmm.core.problem import Problem
from fedadmm.core.regularizers import (
    L1,
    Box,
    ElasticNet,
    GroupLasso,
    L2Ball,
    NonNegative,
    SquaredL2,
)
from fedadmm.data import problems
from fedadmm.data.problems.theory import CosineQuadratic, RobustRegression, Saturating
from fedadmm.study.config import resolve

CASES = {
    "quadratics": {},
    "quadratics-odd": {"clients": 7, "dimension": 3, "conditioning": 50.0, "smoothness": 4.0},
    "saturating": {"heterogeneity": 0.8},
    "cosine-quadratics": {"clients": 5},
    "robust-regression": {},
    "robust-regression-few-rows": {"smoothness": 2.0, "rows": 6},
}
NONCONVEX = [name for name in CASES if not name.startswith("quadratics")]


def load(case: str) -> Problem:
    for name in problems.names():
        if case.startswith(name):
            return problems.load(name, **CASES[case])
    raise AssertionError(case)


def points(problem: Problem, count: int, scale: float) -> Tensor:
    source = torch.Generator().manual_seed(1)
    spread = torch.randn(count, problem.num_parameters, generator=source, dtype=torch.float64)
    return problem.facts.optimum + scale * spread


def hessian_spectra(client: Objective, where: Tensor) -> Tensor:
    """Eigenvalues of Hessians by central differences of the gradient, whose test is below."""
    step = 1e-5
    moves = step * torch.eye(client.num_parameters, dtype=torch.float64)
    hessians = torch.stack(
        [
            torch.stack([client.gradient(x + m) - client.gradient(x - m) for m in moves])
            for x in where
        ]
    )
    return torch.linalg.eigvalsh((hessians + hessians.mT) / (4 * step))


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_the_derivatives_of_values(case: str) -> None:
    problem = load(case)
    for client in (problem.clients[0], problem.clients[problem.num_clients - 1]):
        for x in points(problem, 3, 1.0):
            x = x.clone().requires_grad_()
            (expected,) = torch.autograd.grad(client.value(x), x)
            torch.testing.assert_close(
                client.gradient(x.detach()), expected, atol=1e-12, rtol=1e-10
            )


@pytest.mark.parametrize("case", CASES)
def test_smoothness_bounds_every_hessian_and_is_attained(case: str) -> None:
    """The largest |eigenvalue| over many points is at most L, and comes close to it."""
    problem = load(case)
    limit = problem.facts.smoothness
    assert limit is not None
    largest = 0.0
    for index in range(min(4, problem.num_clients)):
        client = problem.clients[index]
        around = torch.cat([points(problem, 25, s) for s in (0.0, 0.3, 1.0, 3.0)])
        largest = max(largest, float(hessian_spectra(client, around).abs().max()))
    assert largest <= limit * (1 + 1e-6)
    assert largest >= 0.7 * limit


@pytest.mark.parametrize("case", CASES)
def test_weak_convexity_bounds_every_hessian_from_below_and_is_nearly_attained(case: str) -> None:
    """The least eigenvalue over many points is at least -m; m = 0 for the convex ones."""
    problem = load(case)
    modulus = problem.facts.weak_convexity
    around = torch.cat([points(problem, 60, s) for s in (0.3, 1.0, 3.0)])
    least = min(float(hessian_spectra(problem.clients[i], around).min()) for i in range(4))
    assert least >= -modulus * (1 + 1e-6) - 1e-6
    if case.startswith("quadratics"):
        assert modulus == 0.0
    else:
        assert least <= -0.4 * modulus


@pytest.mark.parametrize("case", CASES)
def test_smoothness_bounds_gradient_differences(case: str) -> None:
    problem = load(case)
    client = problem.clients[problem.num_clients - 1]
    first, second = points(problem, 200, 2.0), points(problem, 400, 2.0)[200:]
    for x, z in zip(first, second, strict=True):
        change = (client.gradient(x) - client.gradient(z)).norm()
        assert change <= problem.facts.smoothness * (x - z).norm() * (1 + 1e-9)


@pytest.mark.parametrize("case", CASES)
def test_the_optimum_is_stationary_and_has_the_infimum(case: str) -> None:
    problem = load(case)
    optimum = problem.facts.optimum
    assert float(problem.gradient(optimum).norm()) < 1e-10
    assert float(problem.value(optimum)) == pytest.approx(problem.facts.infimum, abs=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_no_minimisation_finds_less_than_the_infimum(case: str) -> None:
    problem = load(case)

    def value_and_gradient(x: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.from_numpy(x)
        return float(problem.value(point)), problem.gradient(point).numpy()

    lowest = min(
        optimize.minimize(value_and_gradient, start.numpy(), jac=True, method="L-BFGS-B").fun
        for start in points(problem, 3, 0.5)
    )
    assert lowest >= problem.facts.infimum - 1e-12
    assert lowest <= problem.facts.infimum + 1e-6


@pytest.mark.parametrize("case", NONCONVEX)
def test_the_others_are_not_convex(case: str) -> None:
    problem = load(case)
    client = problem.clients[0]
    assert float(hessian_spectra(client, points(problem, 50, 1.5)).min()) < -0.01


def test_clients_of_a_heterogeneous_problem_disagree() -> None:
    for case in ("quadratics", "saturating", "cosine-quadratics"):
        problem = load(case)
        pulls = [c.gradient(problem.facts.optimum) for c in problem.clients]
        assert float(pulls[0].norm()) > 0.1
        torch.testing.assert_close(pulls[0], -pulls[1])
    agree = problems.load("quadratics", heterogeneity=0.0)
    assert float(agree.clients[0].gradient(agree.facts.optimum).norm()) < 1e-12


def test_quadratics_have_the_spectrum_that_is_asked_for() -> None:
    problem = problems.load("quadratics", conditioning=25.0, smoothness=2.0, dimension=5)
    for client in problem.clients:
        assert isinstance(client, QuadraticObjective)
        spectrum = torch.linalg.eigvalsh(client.hessian())
        assert float(spectrum[-1]) == pytest.approx(2.0)
        assert float(spectrum[0]) == pytest.approx(2.0 / 25)


def test_a_million_clients_can_be_described() -> None:
    problem = problems.load("quadratics", clients=1_000_000)
    first, partner = problem.clients[777_776], problem.clients[777_777]
    x = problem.facts.optimum
    torch.testing.assert_close(first.gradient(x), -partner.gradient(x))
    with pytest.raises(IndexError):
        problem.clients[1_000_000]


def test_another_seed_is_another_problem_and_the_same_seed_the_same() -> None:
    first, again, other = (problems.load("quadratics", data_seed=s) for s in (1, 1, 2))
    assert torch.equal(first.clients[3].A, again.clients[3].A)
    assert not torch.equal(first.clients[3].A, other.clients[3].A)
    assert torch.equal(first.start(5), again.start(5))


REGULARIZERS = {
    "l1": L1(0.3),
    "l2": SquaredL2(0.5),
    "elastic net": ElasticNet(0.2, 0.4),
    "group lasso": GroupLasso(0.4, (4, 6)),
    "box": Box(-0.4, 0.6),
    "ball": L2Ball(1.0),
    "orthant": NonNegative(),
}


@pytest.mark.parametrize("regularizer", REGULARIZERS.values(), ids=REGULARIZERS)
@pytest.mark.parametrize(
    "name", ["quadratics", "saturating", "cosine-quadratics", "robust-regression"]
)
def test_with_a_regularizer_the_optimum_stays_known(name: str, regularizer: Regularizer) -> None:
    """x* is stationary and has the value F*, and proximal gradient steps find nothing lower."""
    problem = problems.load(name, clients=6, regularizer=regularizer)
    plain = problems.load(name, clients=6)
    facts = problem.facts
    assert facts._replace(infimum=0.0, optimum=None) == plain.facts._replace(optimum=None)
    assert not torch.equal(facts.optimum, plain.facts.optimum)
    assert float(problem.gradient_mapping(facts.optimum, 0.3).norm()) < 1e-12

    def value(x: Tensor) -> float:
        return float(problem.value(x) + regularizer.value(x))

    assert value(facts.optimum) == pytest.approx(facts.infimum, abs=1e-12)
    step = 1 / facts.smoothness
    for start in points(plain, 4, 1.0):
        x = start
        for _ in range(400):
            before, x = x, regularizer.prox(x - step * problem.gradient(x), step)
            if float((x - before).norm()) < 1e-12:
                break
        assert value(x) >= facts.infimum - 1e-12
    if name == "quadratics":
        assert value(x) <= facts.infimum + 1e-9


def lasso_by_coordinates(A: np.ndarray, b: np.ndarray, lam: float) -> np.ndarray:
    """min x'Ax/2 - b'x + lam ||x||_1, one coordinate after the other."""
    x = np.zeros(len(b))
    for _ in range(3000):
        for j in range(len(b)):
            rest = b[j] - A[j] @ x + A[j, j] * x[j]
            x[j] = np.sign(rest) * max(abs(rest) - lam, 0) / A[j, j]
    return x


def test_the_infimum_of_a_lasso_by_coordinate_descent() -> None:
    lam = 0.3
    problem = problems.load("quadratics", clients=6, regularizer=L1(lam))
    A = np.mean([client.A.numpy() for client in problem.clients], axis=0)
    b = np.mean([client.b.numpy() for client in problem.clients], axis=0)
    constant = np.mean([client.constant for client in problem.clients])
    x = lasso_by_coordinates(A, b, lam)
    assert 0 < np.count_nonzero(x) < len(x)
    value = x @ A @ x / 2 - b @ x + constant + lam * np.abs(x).sum()
    assert value == pytest.approx(problem.facts.infimum, abs=1e-12)
    np.testing.assert_allclose(x, problem.facts.optimum.numpy(), atol=1e-10)


def test_the_infimum_in_a_box_by_scipy() -> None:
    problem = problems.load("quadratics", clients=6, regularizer=Box(-0.4, 0.6))

    def value_and_gradient(x: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.from_numpy(x)
        return float(problem.value(point)), problem.gradient(point).numpy()

    found = optimize.minimize(
        value_and_gradient,
        np.zeros(10),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-0.4, 0.6)] * 10,
        options={"ftol": 1e-15, "gtol": 1e-12},
    )
    assert found.fun == pytest.approx(problem.facts.infimum, abs=1e-12)
    assert 0 < sum(-0.4 < x < 0.6 for x in found.x) < 10


def test_a_start_lies_in_the_domain_of_g() -> None:
    inside = problems.load("quadratics", regularizer=Box(-0.4, 0.6))
    start, free = inside.start(3), problems.load("quadratics").start(3)
    torch.testing.assert_close(start, free.clamp(-0.4, 0.6))
    assert torch.equal(problems.load("quadratics", regularizer=L1(1.0)).start(3), free)


def test_a_configuration_without_a_regularizer_keeps_the_facts() -> None:
    """Configurations name the regularizer `zero` where Python passes none."""
    facts = resolve({"problem": {"name": "saturating"}}).load_problem().facts
    assert facts.infimum == 0.0
    assert torch.equal(facts.optimum, problems.load("saturating").facts.optimum)


def test_mini_batches_of_the_robust_regression_average_to_its_gradient() -> None:
    client = load("robust-regression").clients[0]
    x = torch.ones(10, dtype=torch.float64)
    rows = torch.randperm(client.num_samples).chunk(3)
    parts = sum(client.gradient(x, part) * len(part) for part in rows)
    torch.testing.assert_close(parts / client.num_samples, client.gradient(x))


def test_another_precision() -> None:
    for case in NONCONVEX:
        client = load(case).clients[0]
        x = torch.ones(client.num_parameters, dtype=torch.float64)
        single = client.to(torch.float32)
        assert single.gradient(x.float()).dtype == torch.float32
        torch.testing.assert_close(
            single.gradient(x.float()).double(), client.gradient(x), atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize(
    "call",
    [
        lambda: Saturating(torch.zeros(2), torch.ones(3)),
        lambda: CosineQuadratic(torch.zeros(2), torch.zeros(2)),
        lambda: RobustRegression(torch.zeros(2, 3), torch.zeros(3)),
        lambda: RobustRegression(torch.zeros(0, 3), torch.zeros(0)),
    ],
)
def test_wrong_shapes_are_refused(call) -> None:
    with pytest.raises(DataError):
        call()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("quadratics", {"conditioning": 0.5}, "conditioning: got 0.5, expected >= 1"),
        ("quadratics", {"clients": 0}, "clients: got 0"),
        ("saturating", {"heterogeneity": -1.0}, "heterogeneity: got -1.0"),
        ("cosine-quadratics", {"frequency": 0.0}, "frequency: got 0.0"),
        ("quadratics", {"model": "cnn1"}, "there is no option 'model'"),
    ],
)
def test_wrong_options_are_refused(name: str, options: dict, message: str) -> None:
    with pytest.raises(ParameterError) as error:
        problems.load(name, **options)
    assert message in str(error.value)
