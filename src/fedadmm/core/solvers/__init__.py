"""Solvers of the local problem."""

from __future__ import annotations

from fedadmm.core.solvers.exact import ExactSolver
from fedadmm.core.solvers.first_order import LBFGS, SGD, AcceleratedGradient, GradientDescent
from fedadmm.core.solvers.private import DPSGD

__all__ = ["DPSGD", "LBFGS", "SGD", "AcceleratedGradient", "ExactSolver", "GradientDescent"]
