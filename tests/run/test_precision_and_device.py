"""Precision and device follow the initial vector, on every local engine."""

from __future__ import annotations

import pytest
import torch

import fedadmm as fa
from fedadmm.run.engines import Workers
from support.engines import PROBLEMS, assert_same_run, run
from support.rejections import naming

ENGINES = ["sequential", "vectorised", Workers(workers=2, timeout=60.0), "auto"]
NEEDS_GPU = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no GPU on this machine"
)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.1)], ids=str
)
def test_lower_precision(engine: object, dtype: torch.dtype, tolerance: float) -> None:
    problem = PROBLEMS["perceptron"]()
    exact = run("sequential", fa.FedADMM(rho=0.5), problem)
    found = run(engine, fa.FedADMM(rho=0.5), problem, initial=problem.initial.to(dtype))
    assert found.params.dtype == dtype
    assert all(state.w.dtype == state.y.dtype == dtype for state in found.clients.values())
    torch.testing.assert_close(found.params.double(), exact.params, rtol=0, atol=tolerance)


@NEEDS_GPU
@pytest.mark.parametrize("engine", ["sequential", "vectorised", "auto"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_gpu(engine: str, problem: str) -> None:
    task = PROBLEMS[problem]()
    expected = run("sequential", fa.FedADMM(rho=0.5), task)
    found = run(engine, fa.FedADMM(rho=0.5), task, initial=task.initial.cuda())
    assert found.params.is_cuda
    on_cpu = found._replace(
        trajectory=[theta.cpu() for theta in found.trajectory],
        clients={i: type(s)(*(t.cpu() for t in s)) for i, s in found.clients.items()},
    )
    assert_same_run(on_cpu, expected)


@NEEDS_GPU
def test_workers_refuse_a_gpu() -> None:
    task = PROBLEMS["perceptron"]()
    with pytest.raises(fa.errors.CompatibilityError, match=naming("CPU")):
        run("workers", fa.FedADMM(rho=0.5), task, initial=task.initial.cuda())
