"""For Flower apps that exist already: keep your model, your data and your training loop.

    # task.py, shared by both sides
    admm = DropIn(fa.FedADMM(rho=0.1), clients=10, model=Net)

    # server_app.py, instead of FedAvg(...).start(...)
    result = admm.start(grid, num_rounds=20, run_dir="run")

    # client_app.py
    @app.train(mods=[admm.mod])
    def train(msg, context): ...          # unchanged

What the train function has to do is what it does for FedAvg: load `arrays` into the model, make
its steps with a torch optimiser over `model.parameters()`, and return the model's state_dict as
an ArrayRecord.  The method's own terms, linear + weight (w - centre), are added to the gradients
before every optimiser step.  A loop that makes no such step, or steps other parameters, is
refused with a sentence, because the method would silently be another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedadmm.core.errors import PairingError, check_count, check_kind
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.core.problem import Buffers
from fedadmm.core.protocols import (
    IN_NO_ROUND,
    Algorithm,
    AnyAlgorithm,
    LocalProblem,
    LocalResult,
    LocalSolver,
    Objective,
    Sampler,
    SolveContext,
    SolveInfo,
    StoppingRule,
)
from fedadmm.core.rng import Key
from fedadmm.core.sampling import FullParticipation
from fedadmm.data import models
from fedadmm.flower.federation import Elsewhere, Federation, Patience
from fedadmm.flower.protocol import wire
from fedadmm.flower.protocol.admission import Admission
from fedadmm.flower.site.app import answer

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Context, Message, MetricRecord
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Result

Next = Callable[["Message", "Context"], "Message"]


class Correction:
    """Adds the local problem's terms to the gradients of every optimiser step, and counts them."""

    def __init__(self, flat: FlatModule, problem: LocalProblem) -> None:
        self._slots = flat.slots
        self._problem = problem
        self.steps = 0
        self.gradients = torch.zeros_like(flat.vector)

    def __call__(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Before a step: keep the raw gradient, then add the terms."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        shapes = [parameter.shape for parameter in trained]
        if shapes != [slot.shape for slot in self._slots]:
            raise PairingError(
                "the optimiser steps other parameters than the model's, in their order; make it "
                "with model.parameters() of the model that DropIn was given"
            )
        self.steps += 1
        for slot, parameter in zip(self._slots, trained, strict=True):
            part = slice(slot.begin, slot.end)
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            self.gradients[part] += parameter.grad.reshape(-1).to(self.gradients)
            parameter.grad.add_(self._terms(part, parameter.detach()).to(parameter.grad))

    def _terms(self, part: slice, values: Tensor) -> Tensor:
        terms = torch.zeros_like(values)
        if self._problem.linear is not None:
            terms += self._problem.linear[part].view_as(values)
        if self._problem.centre is not None:
            weight = float(self._problem.weight)
            terms += weight * (values - self._problem.centre[part].view_as(values))
        return terms

    @contextmanager
    def active(self) -> Iterator[None]:
        """Every optimiser of this process is corrected inside."""
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        handle = register_optimizer_step_pre_hook(self)
        try:
            yield
        finally:
            handle.remove()


@dataclass(frozen=True)
class OwnLoop(LocalSolver):
    """A local solver that is somebody's own train function."""

    train: Callable[[dict[str, Tensor], int], Mapping[str, Tensor]] | None = None

    averages_gradients = True

    def solve(
        self,
        objective: Objective,
        problem: LocalProblem,
        stop: StoppingRule,
        key: Key,
        context: SolveContext = IN_NO_ROUND,
    ) -> tuple[LocalResult, SolveInfo]:
        """Hand over the start, correct the steps, take the result back."""
        assert self.train is not None
        flat = objective.flat
        assert flat is not None
        flat.load(problem.start)
        correction = Correction(flat, problem)
        state = {name: value.clone() for name, value in flat.module.state_dict().items()}
        with torch.enable_grad(), correction.active():
            returned = self.train(state, context.round_index + 1)
        if correction.steps == 0:
            raise PairingError(
                "the train function made no step of a torch optimiser, but must, because the "
                "method's terms are added to the gradients there"
            )
        flat.module.load_state_dict(dict(returned))
        mean = correction.gradients / correction.steps
        sentence, unknown = f"{correction.steps} steps of the app's own loop", float("nan")
        info = SolveInfo(correction.steps, unknown, unknown, sentence, unknown)
        return LocalResult(flat.vector.clone(), mean_gradient=mean), info


@dataclass(frozen=True, eq=False)
class DropIn:
    """A method of the package for a Flower app that exists already.

    Args:
        algorithm: the method; it must not need gradients at the broadcast vector, nor the sizes of
            the local steps.
        clients: how many nodes there are.
        model: what makes the model that the train function loads.
        config: handed to the train function in every message, as `config`.
        sampler, seed, buffers, ledger, names, patience, admission, accept_rollback: as in
            `Federation`.
    """

    algorithm: AnyAlgorithm
    clients: int
    model: models.Model
    config: Mapping[str, Any] = field(default_factory=dict)
    sampler: Sampler = field(default_factory=FullParticipation)
    seed: int = 0
    buffers: Buffers | None = None
    ledger: Any = "none"
    names: Sequence[str] | None = None
    patience: Patience = field(default_factory=Patience)
    admission: Admission = field(default_factory=Admission)
    accept_rollback: bool = False

    def __post_init__(self) -> None:
        check_kind(self, "algorithm", self.algorithm, Algorithm)
        check_kind(self, "sampler", self.sampler, Sampler)
        check_count(self, "clients", self.clients)
        check_count(self, "seed", self.seed, low=0)
        needs = self.algorithm.needs
        if needs.start_gradient or not needs.local_solve:
            raise PairingError(
                f"DropIn: {type(self.algorithm).__name__} needs full gradients, which a train "
                "function does not give; use another method or option, or fedadmm.flower.client_app"
            )
        if needs.step_sum:
            raise PairingError(
                f"DropIn: {type(self.algorithm).__name__} must know the size of every local step, "
                "which a train function does not tell; use another method, or "
                "fedadmm.flower.client_app"
            )
        if self.sampler.asks_losses:
            raise PairingError(
                f"DropIn: {type(self.sampler).__name__} asks for the clients' losses, which a "
                "train function does not give; use another sampler, or fedadmm.flower.client_app"
            )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        *,
        run_dir: str | Path,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run, or resume, and return what Flower's own strategies return."""
        from flwr.app import ArrayRecord, MetricRecord
        from flwr.serverapp.strategy import Result

        from fedadmm.flower.server.app import serve
        from fedadmm.flower.server.rundir import RunDirectory

        flat = self._flat()
        measured: dict[int, MetricRecord] = {}

        def arrays(params: Tensor) -> ArrayRecord:
            flat.load(params)
            return ArrayRecord({k: v.clone() for k, v in flat.module.state_dict().items()})

        def observe(report: Any) -> None:
            if evaluate_fn is not None:
                params = self.algorithm.global_params(report.state.server)
                found = evaluate_fn(report.record["round"], arrays(params))
                if found is not None:
                    measured[report.record["round"]] = MetricRecord(dict(found))
                    report.record["metrics"].update({str(k): v for k, v in dict(found).items()})

        start = None
        if initial_arrays is not None:
            flat.module.load_state_dict(initial_arrays.to_torch_state_dict())
            start = flat.vector.clone()
        federation = self.federation(num_rounds, start)
        directory = RunDirectory(Path(run_dir))
        outcome = serve(federation, grid, directory.path, [observe, directory])
        directory.finish(outcome)
        return Result(arrays=arrays(outcome.params), evaluate_metrics_serverapp=measured)

    def mod(self, message: Message, context: Context, call_next: Next) -> Message:
        """The mod for `@app.train(mods=[…])`: what is not ours goes on unchanged."""
        from flwr.app import Message

        if wire.HELLO not in message.content and wire.HEAD not in message.content:
            return call_next(message, context)

        def train(state: dict[str, Tensor], number: int) -> Mapping[str, Tensor]:
            return self._call(message, context, call_next, state, number)

        flat = self._flat()
        federation = self.federation(1, flat.vector.clone(), OwnLoop(train))
        elsewhere = Elsewhere(flat.num_parameters, flat)
        content = answer(federation, lambda: elsewhere, context, message.content)
        return Message(content, reply_to=message)

    def _call(
        self,
        message: Message,
        context: Context,
        call_next: Next,
        state: dict[str, Tensor],
        number: int,
    ) -> Mapping[str, Tensor]:
        """The app's own train function, with the messages it knows."""
        from flwr.app import ArrayRecord, ConfigRecord, RecordDict

        config = ConfigRecord({**dict(self.config), "server-round": number})
        message.content = RecordDict({"arrays": ArrayRecord(state), "config": config})
        reply = call_next(message, context)
        records = [r for r in reply.content.values() if isinstance(r, ArrayRecord)]
        if len(records) != 1:
            raise PairingError(
                f"the train function returned {len(records)} array records, but must return one, "
                "the model's state_dict"
            )
        returned: Mapping[str, Tensor] = records[0].to_torch_state_dict()
        return returned

    def federation(
        self, rounds: int, initial: Tensor | None = None, solver: OwnLoop | None = None
    ) -> Federation:
        """The federation that this app runs."""
        return Federation(
            self.algorithm,
            self.clients,
            rounds,
            model=self.model,
            initial=initial,
            solver=solver or OwnLoop(),
            sampler=self.sampler,
            seed=self.seed,
            buffers=self.buffers,
            ledger=self.ledger,
            names=self.names,
            patience=self.patience,
            admission=self.admission,
            accept_rollback=self.accept_rollback,
        )

    def _flat(self) -> FlatModule:
        return FlatModule(models.build(self.model, seed=self.seed))
