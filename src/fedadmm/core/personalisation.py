"""Personalised models in addition to the global model of any method: Ditto and local layers.

Personalisation does not change the server, and its parameters are never sent.  They are the first
tensor of the client's memory (`ClientRecord.memory`), followed by the state of its solver.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fedadmm.core.compatibility import Feature
from fedadmm.core.contracts import LocalNeeds, LocalProblem, LocalResult
from fedadmm.core.errors import ParameterError
from fedadmm.core.parts import Part, Positive, part, role

if TYPE_CHECKING:
    from fedadmm.core.local_work import SolveContext, SolveInfo
    from fedadmm.core.objectives.flat import FlatModule
    from fedadmm.core.setup import Setup

Solve = Callable[[LocalProblem, Any, str], tuple[LocalResult, "list[SolveInfo]"]]
"""Solves a problem of one client or a stack in a context; mini-batches depend on the purpose."""
Worked = tuple[LocalResult, Tensor, "list[SolveInfo]"]
"""The method's result, the personal parameters, and the statistics of the solves."""


class Work(NamedTuple):
    """The local training of a client in a round, or that of a stack."""

    run: Solve
    problem: LocalProblem
    kept: Tensor
    context: SolveContext
    flat: FlatModule | None


@role("personal")
class Personalisation(Part, ABC):
    """Base class of personalisation: parameters that each client trains and never sends."""

    def requires(self, run: Setup) -> Iterable[Feature]:
        return (Feature.LOCAL_SOLVE,)

    def work(
        self, run: Solve, problem: LocalProblem, context: SolveContext, flat: FlatModule | None
    ) -> tuple[LocalResult, list[SolveInfo]]:
        """Train one client or a stack; the result's memory holds the personal parameters."""
        assert context.memory is not None, "every client of a run has a record"
        kept, *own = context.memory
        context = context._replace(memory=tuple(own) or None)
        result, kept, infos = self.solve(Work(run, problem, kept, context, flat))
        return result._replace(memory=(kept, *(result.memory or ()))), infos

    @abstractmethod
    def first(self, params: Tensor) -> Tensor:
        """Return a client's personal parameters before its first round."""

    @abstractmethod
    def solve(self, work: Work) -> Worked:
        """Train the method's model and the personal parameters."""

    @abstractmethod
    def own_model(self, kept: Tensor, theta: Tensor) -> Tensor:
        """Return the personalised model from the personal parameters and the global model."""


@part("personal", "ditto")
class Ditto(Personalisation):
    """Ditto: a second, personalised model v_i for each client (Li et al., ICML 2021).

        v_i ~ argmin f_i(v) + (weight/2) ||v - theta||^2, started at the last v_i

    theta is trained by any method.  The additional solve in every round of the client doubles the
    local work.  `Result.personal(i)` is v_i.

    Args:
        weight: Weight of the quadratic term between v_i and theta (the paper's lambda).
            Default 0.1.

    Example:
        >>> import torch, fedadmm as fa
        >>> clients = [fa.Quadratic([[a]], [b]) for a, b in ((1.0, 6.0), (2.0, 6.0), (3.0, 0.0))]
        >>> problem = fa.Problem(clients, initial=torch.zeros(1))
        >>> work = dict(solver=fa.ExactSolver(), personal=fa.Ditto(weight=1.0))
        >>> result = fa.simulate(fa.FedAvg(), problem, 20, **work)  # theta = 3
        >>> [round(result.personal(client).item(), 2) for client in range(3)]
        [4.5, 3.0, 0.75]
    """

    weight: Positive = 0.1

    def requires(self, run: Setup) -> Iterable[Feature]:
        return (*super().requires(run), Feature.GLOBAL_MODEL)

    def first(self, params: Tensor) -> Tensor:
        return params

    def solve(self, work: Work) -> Worked:
        run, problem, kept, context, flat = work
        result, infos = run(problem, context, "")
        params = result.params.clone()  # the second solve may use its memory
        buffers = None if flat is None else flat.buffers()
        near = LocalProblem(kept, weight=self.weight, centre=context.theta)
        own, more = run(
            near, context._replace(needs=LocalNeeds(), own=kept, memory=None), "personal"
        )
        if flat is not None and buffers is not None:
            flat.load_buffers(buffers)  # BatchNorm statistics belong to the method's model
        pairs = zip(infos, more, strict=True)
        infos = [one._replace(passes=one.passes + two.passes) for one, two in pairs]
        return result._replace(params=params), own.params, infos

    def own_model(self, kept: Tensor, theta: Tensor) -> Tensor:
        return kept


@part("personal", "layers")
class PersonalLayers(Personalisation):
    """Local layers: layers that each client trains for itself and never sends.

    With the last layer it is FedPer (Arivazhagan et al., 2019), with normalisation layers FedBN (Li
    et al., ICLR 2021), and FedRep (Collins et al., ICML 2021) with both parts trained jointly.

    The client stores the difference of its layers to those of theta, which keep their initial
    values: increments, duals and control variates are zero in these layers.  A penalty of the
    method is centred at the client's layers of its last round, which does not change the limit.

    Args:
        stay: Patterns of the names of local parameters, such as "4.*".

    Raises:
        ParameterError: A pattern matches no parameter of the model; raised when a run begins.

    Example:
        Two clients fit y = x + 1 and y = x - 1 with a common slope and their own intercepts:

        >>> import torch, fedadmm as fa
        >>> module, mse = torch.nn.Linear(1, 1), torch.nn.functional.mse_loss
        >>> x = torch.tensor([[-1.0], [1.0]])
        >>> clients = [fa.ModelObjective(module, mse, x, x + shift) for shift in (1.0, -1.0)]
        >>> problem = fa.Problem(clients, initial=torch.zeros(2))
        >>> work = dict(solver=fa.GradientDescent(0.1), personal=fa.PersonalLayers(stay=["bias"]))
        >>> result = fa.simulate(fa.FedAvg(), problem, 100, **work)
        >>> result.personal(0).round(decimals=2), result.personal(1).round(decimals=2)
        (tensor([1., 1.]), tensor([ 1., -1.]))
    """

    stay: Sequence[str]

    def requires(self, run: Setup) -> Iterable[Feature]:
        """Neither g nor noise may change the entries of theta that are local layers."""
        return (*super().requires(run), Feature.ZERO_REGULARIZER, Feature.NO_NOISE)

    def check_run(self, run: Setup) -> Iterator[str]:
        yield from super().check_run(run)
        flat = run.problem.clients[0].flat
        if flat is not None:  # a server without data leaves the check to its sites
            self._mask(flat, run.initial)

    def _mask(self, flat: FlatModule | None, like: Tensor) -> Tensor:
        """Return which entries of a vector are local."""
        slots = () if flat is None else flat.slots
        found = {name: [s for s in slots if fnmatch(s.name, name)] for name in self.stay}
        for pattern, own in found.items():
            if not own:
                names = ", ".join(slot.name for slot in slots) or "none, as it is no network"
                raise ParameterError(
                    f"PersonalLayers.stay: got {pattern!r}, expected a pattern of the model's "
                    f"parameters: {names}."
                )
        mask = torch.zeros(like.shape[-1], dtype=torch.bool, device=like.device)
        for slot in (slot for own in found.values() for slot in own):
            mask[slot.begin : slot.end] = True
        return mask

    def first(self, params: Tensor) -> Tensor:
        return torch.zeros_like(params)

    def solve(self, work: Work) -> Worked:
        run, problem, kept, context, flat = work
        stays = self._mask(flat, kept)
        centre = None if problem.centre is None else problem.centre + kept
        shifted = problem._replace(start=problem.start + kept, centre=centre)
        result, infos = run(shifted, context, "")
        own = torch.where(stays, result.params - problem.start, 0.0)

        def without(gradient: Tensor | None) -> Tensor | None:
            return None if gradient is None else torch.where(stays, 0.0, gradient)

        result = result._replace(
            params=torch.where(stays, problem.start, result.params),
            start_gradient=without(result.start_gradient),
            mean_gradient=without(result.mean_gradient),
        )
        return result, own, infos

    def own_model(self, kept: Tensor, theta: Tensor) -> Tensor:
        return theta + kept
