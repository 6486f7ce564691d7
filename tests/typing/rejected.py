"""Mistakes that a type checker must find.

Each mistake carries the error code that mypy must report: in strict mode an ignored error that does
not occur is itself an error.
"""

from __future__ import annotations

import torch

import fedadmm as fa

problem = fa.Problem([fa.Quadratic(torch.eye(2), torch.zeros(2))])

fa.FedADMMM()  # type: ignore[attr-defined]
fa.FedADMM(roh=0.5)  # type: ignore[call-arg]
fa.FedADMM(step="tracked")  # type: ignore[arg-type]
fa.simulate(fa.FedADMM(), problem, 3, sampeler=fa.FullParticipation())  # type: ignore[call-arg]
fa.simulate(fa.FedADMM(), problem, 3, sampler=fa.Epochs(1))  # type: ignore[arg-type]
fa.simulate(fa.FedADMM(), problem, rounds="three")  # type: ignore[arg-type]
fa.simulate(fa.SGD(lr=0.1), problem, 3)  # type: ignore[arg-type]
fa.SGD(lr="fast")  # type: ignore[arg-type]
fa.simulate(fa.FedADMM(), problem, 3).parameters  # type: ignore[attr-defined]  # noqa: B018
