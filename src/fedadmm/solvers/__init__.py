"""Solvers of the local problem."""

from __future__ import annotations

from fedadmm.solvers.exact import ExactSolver
from fedadmm.solvers.first_order import LBFGS, SGD, AcceleratedGradient, GradientDescent

__all__ = ["LBFGS", "SGD", "AcceleratedGradient", "ExactSolver", "GradientDescent"]
