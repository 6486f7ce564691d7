"""Solvers of the local problem."""

from __future__ import annotations

from fedadmm.core.solvers.adam import Adam
from fedadmm.core.solvers.full_batch import LBFGS, AcceleratedGradient, ExactSolver, GradientDescent
from fedadmm.core.solvers.private import DPSGD
from fedadmm.core.solvers.sgd import SGD

__all__ = ["DPSGD", "LBFGS", "SGD", "AcceleratedGradient", "Adam", "ExactSolver", "GradientDescent"]
