"""A-FedPD: FedDyn whose absent clients make the participants' mean dual step.

Sun, Shen, Tao: A-FedPD: Aligning Dual-Drift is All Federated Primal-Dual Learning Needs,
NeurIPS 2024, with eta = 1 / rho.

    client   as FedDyn's
    server   m = mean over S of w_i;   y_j <- y_j + (m - theta) / eta  for all j not in S
             h <- h + (m - theta) / eta;   theta <- m + eta h

It is `fedadmm.algorithms.alignment` with sigma = 1, and so FedADMM and FedDR with absent="aligned"
and alignment=1.  The paper evaluates m: choose the output "participants-mean" for that.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from fedadmm.algorithms.alignment import Aligning, Steps
from fedadmm.algorithms.fed_dyn import Client, FedDyn
from fedadmm.core.parts import part


@part("algorithm", "a-fedpd")
class AFedPD(Aligning, FedDyn):
    """A-FedPD with step `eta`; the dual part averages over "all" members, or those "seen"."""

    title: ClassVar[str] = "A-FedPD"
    paper: ClassVar[str] = "Sun, Shen, Tao, A-FedPD, NeurIPS 2024"

    @property
    def sigma(self) -> float:
        """Absent clients make the whole step."""
        return 1.0

    def common_penalty(self, round_index: int) -> float:
        """1 / eta."""
        return 1 / self.eta

    def first_weights(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """Every client counts, or none yet."""
        members = params.new_full((1,), 1.0 if self.members == "all" else 0.0)
        return members, members / self.eta

    def weights_of(self, before: Client, after: Client) -> Steps:
        """With members="seen", whether the client joins."""
        return Steps(after.y, None if self.members == "all" else 1 - before.joined)
