"""What a client trains and keeps for itself, beside the global model of any method.

Neither part changes what the server does, and what a client keeps never leaves it.  It is the first
tensor of the client's memory (`ClientRecord.memory`), where its solver's own follows.
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
"""Solve a problem of one client or a stack in a context; a purpose gives it mini-batches of its
own."""
Worked = tuple[LocalResult, Tensor, "list[SolveInfo]"]
"""The method's result, what is kept now, and how the solves went."""


class Work(NamedTuple):
    """The local work of a client in a round, or that of a stack."""

    run: Solve
    problem: LocalProblem
    kept: Tensor
    context: SolveContext
    flat: FlatModule | None


@role("personal")
class Personalisation(Part, ABC):
    """What clients keep for themselves."""

    def requires(self, run: Setup) -> Iterable[Feature]:
        return (Feature.LOCAL_SOLVE,)

    def work(
        self, run: Solve, problem: LocalProblem, context: SolveContext, flat: FlatModule | None
    ) -> tuple[LocalResult, list[SolveInfo]]:
        """A client's local work, or that of a stack, and what is kept of it."""
        assert context.memory is not None, "every client of a run has a record"
        kept, *own = context.memory
        context = context._replace(memory=tuple(own) or None)
        result, kept, infos = self.solve(Work(run, problem, kept, context, flat))
        return result._replace(memory=(kept, *(result.memory or ()))), infos

    @abstractmethod
    def first(self, params: Tensor) -> Tensor:
        """What a client keeps before its first round."""

    @abstractmethod
    def solve(self, work: Work) -> Worked:
        """Train the method's model and what is kept."""

    @abstractmethod
    def own_model(self, kept: Tensor, theta: Tensor) -> Tensor:
        """The client's own model, beside this global one."""


@part("personal", "ditto")
class Ditto(Personalisation):
    """A second model v_i for each client, near the global one.

    v_i ~ argmin f_i(v) + (weight/2) ||v - theta||^2, a solve of its own in every round of the
    client that goes on from its last v_i.  (Li, Hu, Beirami, Smith: Ditto: Fair and Robust
    Federated Learning Through Personalization, ICML 2021, with any method for theta.)  It doubles
    the local work.

    Args:
        weight: the paper's lambda: how strongly v_i is held near theta.
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
            flat.load_buffers(buffers)  # statistics are those of the method's model
        pairs = zip(infos, more, strict=True)
        infos = [one._replace(passes=one.passes + two.passes) for one, two in pairs]
        return result._replace(params=params), own.params, infos

    def own_model(self, kept: Tensor, theta: Tensor) -> Tensor:
        return kept


@part("personal", "layers")
class PersonalLayers(Personalisation):
    """Layers that each client trains for itself; the others are the method's.

    With the last layer it is FedPer (Arivazhagan et al., 2019), with the normalising ones FedBN (Li
    et al., ICLR 2021), and FedRep (Collins et al., ICML 2021) with both parts trained at once.

    The client keeps how far its layers are from those of theta, which stay what they were at the
    start: for the method they do not move, so that no increment, dual or control variate has
    anything of them.  In messages they are zeros.  A penalty of the method holds a client's
    layers near those of its last round, which does not change where they rest.

    Args:
        stay: patterns of the names of parameters, such as "4.*".
    """

    stay: Sequence[str]

    def requires(self, run: Setup) -> Iterable[Feature]:
        """Neither g nor noise may move the layers of the global model that clients keep."""
        return (*super().requires(run), Feature.ZERO_REGULARIZER, Feature.NO_NOISE)

    def check_run(self, run: Setup) -> Iterator[str]:
        yield from super().check_run(run)
        flat = run.problem.clients[0].flat
        if flat is not None:  # a server without data leaves the check to its sites
            self._mask(flat, run.initial)

    def _mask(self, flat: FlatModule | None, like: Tensor) -> Tensor:
        """Which entries of a vector stay."""
        slots = () if flat is None else flat.slots
        found = {name: [s for s in slots if fnmatch(s.name, name)] for name in self.stay}
        for pattern, own in found.items():
            if not own:
                names = ", ".join(slot.name for slot in slots) or "none: it is no network"
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
