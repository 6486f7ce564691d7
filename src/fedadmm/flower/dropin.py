"""Use a method of the package in an existing Flower app, with its own model, data and training.

    # task.py, shared by both sides
    admm = DropIn(fa.FedADMM(rho=0.1), clients=10, model=Net)

    # client_app.py, instead of ClientApp()
    app = ClientApp(mods=[admm.mod])

    # server_app.py, instead of FedAvg(...)
    strategy = admm
    result = strategy.start(grid=grid, ...)     # unchanged

The train function is the same as for FedAvg: it loads `arrays` into the model, makes its steps with
a torch optimiser over `model.parameters()`, and returns the model's state_dict as an ArrayRecord.
The method's own terms, linear + weight (w - centre), are added to the gradients before every
optimiser step.  A loop without such a step, or over other parameters, is an error, because the
method would silently be another one.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedadmm.core.capabilities import fit_penalties
from fedadmm.core.contracts import AnyAlgorithm, LocalProblem, LocalResult
from fedadmm.core.errors import CompatibilityError, ParameterError, StateError
from fedadmm.core.local_work import OUTSIDE_RUN, LocalSolver, SolveContext, SolveInfo
from fedadmm.core.objectives import Objective
from fedadmm.core.objectives.flat import FlatModule
from fedadmm.core.parts import Positive
from fedadmm.core.rng import Key
from fedadmm.core.schedules import PerWork
from fedadmm.core.stopping import StoppingRule
from fedadmm.core.validation import check
from fedadmm.data import models
from fedadmm.flower.federation import Federation, RemoteObjective
from fedadmm.flower.protocol import wire
from fedadmm.flower.site.app import TrainingSite, answer_training, gate_of, read_evaluation_request
from fedadmm.flower.site.gate import folders_stay
from fedadmm.flower.site.policy import DeclinedError, SitePolicy

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Result


_logger = logging.getLogger("fedadmm")
Next = Callable[["Message", "Context"], "Message"]
NUM_ROUNDS = "num-rounds"
"""The key of a message's `config` with the number of rounds, which is part of a site's terms."""
RUNS = "fedadmm-runs"
"""The folder in the user's home for runs whose path is not absolute."""


class DropIn:
    """A method of the package as the strategy and the mod of an existing Flower app.

    Args:
        algorithm: the method; it must not need gradients at the broadcast vector, nor the sizes of
            the local steps.
        clients: the number of nodes.
        model: a function that returns the model which the train function loads.
        evaluate_every: call the app's evaluate function at all nodes after this many rounds each,
            and after the last one; 0 never does.
        length: learning rate * optimiser steps of one round, divided by 1 - momentum; in the mean
            over the nodes.  A penalty per work, such as FedADMM's default, is fitted to it.  The
            package does not run the train function to find it out.  A node logs a warning if its
            training differs from it by more than a factor of two.
        policy: the policy of nodes without one of their own; by default they evaluate no model,
            because their metrics are exact, for any model that a server sends.
        others: whether messages of other strategies reach the app's functions.  The policy of a
            node is not applied to them: everybody who can start runs then receives its trained
            models and exact metrics.
        settings: all others are those of `Federation`, without a solver and its stopping rule: the
            app's train function is both.
    """

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        clients: int,
        model: models.Model,
        evaluate_every: int = 1,
        *,
        length: float | None = None,
        policy: SitePolicy | None = None,
        others: bool = False,
        **settings: Any,
    ) -> None:
        for name in ("solver", "stop", "local"):
            if name in settings:
                raise ParameterError(
                    f"DropIn: {name} is given, but must not be: the app's own train function "
                    "solves the local problems"
                )
        if length is not None:
            check("DropIn", "length", length, Positive)
            algorithm = fit_penalties(algorithm, lambda: length)
        elif any(isinstance(one, PerWork) for one in vars(algorithm).values()):
            raise ParameterError(
                f"DropIn.length: got None, expected a number for {type(algorithm).__name__} with a "
                "penalty per work: learning rate * steps of a round / (1 - momentum).  Or give the "
                "method its penalty as a number, such as FedADMM(rho=0.1)."
            )
        settings |= {
            "model": model,
            "solver": OwnLoop(expected_length=length),
            "evaluate_every": evaluate_every,
        }
        self.federation = Federation(algorithm, clients, 1, **settings)
        self.model = model
        self.policy = policy or SitePolicy()
        check("DropIn", "policy", self.policy, SitePolicy)
        self.others = others
        check("DropIn", "others", others, bool)
        needs = algorithm.requirements.local_in(-1)
        if needs.start_gradient or not needs.local_solve:
            raise CompatibilityError(
                f"DropIn: {type(algorithm).__name__} needs full gradients, which a train "
                "function does not give; use another method or option, or fedadmm.flower.client_app"
            )
        if needs.step_sum:
            raise CompatibilityError(
                f"DropIn: {type(algorithm).__name__} must know the size of every local step, "
                "which a train function does not tell; use another method, or "
                "fedadmm.flower.client_app"
            )
        if self.federation.experiment.aggregator.is_secure:
            raise CompatibilityError(
                "DropIn: aggregate is MaskedSum, but the metrics of a train function travel with "
                "its update; use Sum, or fedadmm.flower.client_app"
            )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        *,
        run_dir: str | Path | None = None,
    ) -> Result:
        """Run or resume the federation, and return the same as Flower's own strategies.

        Args:
            grid: Flower's grid of nodes.
            initial_arrays: the initial model; by default the one that `seed` gives.
            num_rounds: the number of rounds.
            timeout: seconds to wait for the replies of a round; by default `patience.round`.
            train_config: passed to the train function in every message, as `config`.
            evaluate_config: the same for the evaluate function.
            evaluate_fn: called with the round and the model, before the first round and after
                every one; its metrics are part of the record.
            run_dir: the run directory.  By default every run has a new one, named after the app
                and Flower's run; a path that is not absolute begins in the folder `fedadmm-runs`
                of the user's home, wherever Flower was started.  A run in this folder is resumed;
                a run of another app is an error.
        """
        from flwr.app import ArrayRecord, MetricRecord
        from flwr.serverapp.strategy import Result

        from fedadmm.flower.server.run_recorder import RunRecorder
        from fedadmm.flower.server.server_app import log, log_round, serve

        flat = self._flat()
        result = Result()

        def arrays(params: Tensor) -> ArrayRecord:
            flat.load(params)
            return ArrayRecord({k: v.clone() for k, v in flat.module.state_dict().items()})

        def evaluate(number: int, params: Tensor) -> dict[str, Any]:
            found = None if evaluate_fn is None else evaluate_fn(number, arrays(params))
            if found is None:
                return {}
            result.evaluate_metrics_serverapp[number] = MetricRecord(dict(found))
            return dict(found)

        def observe(report: Any) -> None:
            record, network = report.record, report.record["network"]
            number, metrics = record["round"], dict[str, Any]()
            for group, kept in (
                ("training", result.train_metrics_clientapp),
                ("sites", result.evaluate_metrics_clientapp),
            ):
                if group in network:
                    kept[number] = MetricRecord(network[group]["metrics"])
                    metrics |= network[group]["metrics"]
            params = experiment.algorithm.global_params(report.state.server)
            record["metrics"] = metrics | record["metrics"] | evaluate(number, params)

        problem, patience = self.federation.problem, self.federation.patience
        if initial_arrays is not None:
            flat.module.load_state_dict(initial_arrays.to_torch_state_dict())
            problem = replace(problem, initial=flat.vector.clone())
        experiment = replace(self.federation.experiment, problem=problem, rounds=num_rounds)
        federation = replace(
            self.federation,
            experiment=experiment,
            train_config={**(train_config or {}), NUM_ROUNDS: num_rounds},
            evaluate_config={**(evaluate_config or {}), NUM_ROUNDS: num_rounds},
            identity=self._identity(grid, train_config),
            patience=patience if timeout is None else replace(patience, round=timeout),
        )
        directory = RunRecorder(_folder(grid, run_dir))
        done = directory.rounds
        log.info("The run is kept in %s%s", directory.path, f" ({done} rounds so far)" * bool(done))
        if not done:
            evaluate(0, federation.server_job().initial)
        said = partial(log_round, num_rounds)
        outcome = serve(federation, grid, directory.path, [observe, directory, said])
        log.info("The run has ended: %s", outcome.ending.sentence)
        directory.finish(outcome)
        result.arrays = arrays(outcome.params)
        return result

    def _identity(self, grid: Grid, train_config: ConfigRecord | None) -> dict[str, Any]:
        """Return what identifies the app of a run, so that no other app resumes it."""
        made = self.model if callable(self.model) else type(self.model)
        name = (
            self.model if isinstance(self.model, str) else f"{made.__module__}:{made.__qualname__}"
        )
        return {"app": grid.run.fab_id, "model": name, "train_config": dict(train_config or {})}

    def mod(self, message: Message, context: Context, call_next: Next) -> Message:
        """The mod for `ClientApp(mods=[…])`: the site's policy applies to every message.

        A message of another strategy reaches the app only with `others`.
        """
        with folders_stay(context.node_config):
            if wire.HELLO in message.content or wire.HEAD in message.content:
                return self._train(message, context, call_next)
            if wire.BODY in message.content:
                return self._evaluate(message, context, call_next)
        if not self.others:
            raise DeclinedError(
                "DropIn: got a message without a task, expected one of a fedadmm server, because "
                "the site's policy cannot be applied to others; DropIn(others=True) lets them pass"
            )
        return call_next(message, context)

    def _train(self, message: Message, context: Context, call_next: Next) -> Message:
        """Answer a task: the app's train function is the local solver."""
        from flwr.app import ArrayRecord, Message

        measured: dict[str, float] = {}
        content = message.content
        config = wire.read_record(content, wire.CONFIG)

        def train(state: dict[str, Tensor], number: int) -> Mapping[str, Tensor]:
            message.content = _records(state, {**config, "server-round": number})
            reply = call_next(message, context)
            records = [r for r in reply.content.values() if isinstance(r, ArrayRecord)]
            if len(records) != 1:
                raise CompatibilityError(
                    f"the train function returned {len(records)} array records, expected "
                    "one, the model's state_dict"
                )
            measured.update(_numbers("train", reply.content))
            returned: Mapping[str, Tensor] = records[0].to_torch_state_dict()
            return returned

        flat = self._flat()
        agreed = self._agreed(content)
        experiment = agreed.experiment
        declared = experiment.local.solver
        assert isinstance(declared, OwnLoop)
        solver = replace(declared, train=train)
        own = replace(experiment.local, solver=solver)
        federation = replace(agreed, experiment=replace(experiment, local=own))
        elsewhere = RemoteObjective(flat.num_parameters, flat)
        site = TrainingSite(lambda: elsewhere, _unknown_length, lambda: measured)
        reply = answer_training(federation, context, content, self.policy, site)
        return Message(reply, reply_to=message)

    def _evaluate(self, message: Message, context: Context, call_next: Next) -> Message:
        """Answer an evaluation by the app's evaluate function."""
        from flwr.app import Message

        content = message.content
        gate = gate_of(self._agreed(content), context, content, self.policy)

        def measure() -> RecordDict:
            declined = gate.declines()
            if declined is not None:
                return wire.write_declined(declined)
            flat, config = self._flat(), wire.read_record(content, wire.CONFIG)
            question = read_evaluation_request(wire.read_body(content), flat.num_parameters)
            flat.load(question.params)
            if question.buffers is not None:
                flat.load_buffers(question.buffers)
            message.content = _records(flat.module.state_dict(), config)
            measured = _numbers("evaluate", call_next(message, context).content)
            return wire.write_metrics(measured)

        return Message(gate.evaluate(content, measure), reply_to=message)

    def _agreed(self, content: RecordDict) -> Federation:
        """Return the federation with the rounds that the server names: other rounds, other terms.

        The site's own copy has one round, because only the server is given their number.
        """
        named = wire.read_record(content, wire.CONFIG).get(NUM_ROUNDS)
        run = self.federation.experiment
        rounds = named if type(named) is int and named > 0 else run.rounds
        return replace(self.federation, experiment=replace(run, rounds=rounds))

    def _flat(self) -> FlatModule:
        return FlatModule(models.build(self.model, seed=self.federation.experiment.seed))


def _unknown_length() -> float:
    raise StateError("the server asks for the length of the local work, which `DropIn` is given")


def _folder(grid: Grid, run_dir: str | Path | None) -> Path:
    """Return the run directory, whatever folder Flower's processes were started in."""
    if run_dir is None:
        app = re.sub(r"[^A-Za-z0-9_.-]+", "-", grid.run.fab_id) or "app"
        run_dir = f"{app}-{grid.run.run_id}"
    return Path.home() / RUNS / Path(run_dir).expanduser()


def _records(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> RecordDict:
    """Return the content of a message in the form of Flower's own strategies."""
    from flwr.app import ArrayRecord, ConfigRecord, RecordDict

    arrays = ArrayRecord({name: value.clone() for name, value in state.items()})
    return RecordDict({"arrays": arrays, "config": ConfigRecord(dict(config))})


def _numbers(function: str, content: RecordDict) -> dict[str, float]:
    """Return the finite metrics that a function of the app returned, with plain names."""
    from flwr.app import MetricRecord

    found = {
        re.sub(r"[^A-Za-z0-9_.-]", "_", str(name))[:80]: float(value)
        for record in content.values()
        if isinstance(record, MetricRecord)
        for name, value in record.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
    if len(found) > wire.MOST_METRICS:
        raise CompatibilityError(
            f"the {function} function returned {len(found)} metrics, but may return "
            f"{wire.MOST_METRICS}"
        )
    return found


class Correction:
    """Adds the local problem's terms to the gradients of every optimiser step, and counts them."""

    def __init__(self, flat: FlatModule, problem: LocalProblem) -> None:
        self._slots = flat.slots
        self._problem = problem
        self.steps, self.length = 0, 0.0
        self.gradients = torch.zeros_like(flat.vector)

    def __call__(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Before a step: keep the raw gradient, then add the terms."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        shapes = [parameter.shape for parameter in trained]
        if shapes != [slot.shape for slot in self._slots]:
            raise CompatibilityError(
                "the optimiser steps other parameters than the model's, in their order; make it "
                "with model.parameters() of the model that DropIn was given"
            )
        self.steps += 1
        group = optimizer.param_groups[0]
        self.length += float(group["lr"]) / (1 - float(group.get("momentum", 0.0)))
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
        """Correct every optimiser of this process within a `with` statement."""
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        handle = register_optimizer_step_pre_hook(self)
        try:
            yield
        finally:
            handle.remove()


@dataclass(frozen=True)
class OwnLoop(LocalSolver):
    """The train function of an app as a local solver."""

    train: Callable[[dict[str, Tensor], int], Mapping[str, Tensor]] | None = field(
        default=None, repr=False
    )  # the terms that a site approves are the same for every message
    expected_length: float | None = None
    """The length of a round's work; None if nothing is fitted to it."""

    averages_gradients = True

    def solve(
        self,
        objective: Objective,
        problem: LocalProblem,
        stop: StoppingRule,
        key: Key,
        context: SolveContext = OUTSIDE_RUN,
    ) -> tuple[LocalResult, SolveInfo]:
        flat = objective.flat
        assert flat is not None
        returned, correction = self._run(flat, problem, context.round_index + 1)
        flat.module.load_state_dict(dict(returned))
        self._compare_length(correction.length)
        mean = correction.gradients / correction.steps
        sentence, unknown = f"{correction.steps} steps of the app's own loop", float("nan")
        info = SolveInfo(correction.steps, unknown, unknown, sentence, unknown)
        return LocalResult(flat.vector.clone(), mean_gradient=mean), info

    def _compare_length(self, length: float) -> None:
        """Log a warning if the work differs from that to which the penalty was fitted."""
        expected = self.expected_length
        if expected is not None and not 0.5 <= length / expected <= 2.0:
            _logger.warning(
                "DropIn.length: got %g, but this round's learning rate * steps / (1 - momentum) is "
                "%g; the penalty does not fit",
                *(expected, length),
            )

    def _run(
        self, flat: FlatModule, problem: LocalProblem, number: int
    ) -> tuple[Mapping[str, Tensor], Correction]:
        """Return the result of the train function, and the correction with its steps."""
        assert self.train is not None
        flat.load(problem.start)
        correction = Correction(flat, problem)
        state = {name: value.clone() for name, value in flat.module.state_dict().items()}
        with torch.enable_grad(), correction.active():
            returned = self.train(state, number)
        if correction.steps == 0:
            raise CompatibilityError(
                "the train function made no step of a torch optimiser, but must, because the "
                "method's terms are added to the gradients there"
            )
        return returned, correction
