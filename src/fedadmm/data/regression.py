"""The linear regression of FedADMM-InSa: rows from three distributions, dealt at random.

A third of the rows is drawn from Student's t with five degrees of freedom, a third uniformly from
(-5, 5), a third from N(0, 1): features and target alike, without any linear relation between
them.  The rows are then shuffled and dealt evenly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from fedadmm.core.errors import ParameterError, check_count, check_range
from fedadmm.core.objectives.closed_form import LeastSquares
from fedadmm.core.rng import derive, numpy_generator


@dataclass(frozen=True)
class MixedRows:
    """The clients' rows, drawn one client at a time."""

    clients: int = 200
    rows: int = 50_000
    features: int = 5_000
    ridge: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        for field in ("clients", "rows", "features"):
            check_count(self, field, getattr(self, field))
        check_count(self, "seed", self.seed, 0)
        check_range(self, "ridge", self.ridge, 0.0)
        if self.rows % self.clients:
            raise ParameterError(
                f"MixedRows: rows is {self.rows}, but must be a multiple of the {self.clients} "
                "clients"
            )

    @cached_property
    def kinds(self) -> NDArray[np.int8]:
        """Each row's distribution (0: t, 1: uniform, 2: normal), client by client."""
        third = -(-self.rows // 3)
        kinds = np.full(self.rows, 2, np.int8)
        kinds[:third] = 0
        kinds[third : 2 * third] = 1
        shuffled: NDArray[np.int8] = numpy_generator(derive(self.seed, "mixed/kinds")).permutation(
            kinds
        )
        return shuffled

    def draw(self, client: int) -> LeastSquares:
        """f_i(w) = ||A w - b||^2 / (2m) + ridge ||w||^2 / 2, in float32."""
        each = self.rows // self.clients
        kinds = self.kinds[client * each : (client + 1) * each]
        generator = numpy_generator(derive(self.seed, "mixed/client", client))
        values = np.empty((each, self.features + 1), np.float32)
        student, uniform, normal = (np.flatnonzero(kinds == kind) for kind in range(3))
        width = self.features + 1
        values[student] = generator.standard_t(5, (len(student), width))
        values[uniform] = generator.uniform(-5, 5, (len(uniform), width))
        values[normal] = generator.standard_normal((len(normal), width), np.float32)
        table = torch.from_numpy(values)
        return LeastSquares(table[:, :-1].contiguous(), table[:, -1].contiguous(), self.ridge)
